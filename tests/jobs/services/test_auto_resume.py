"""A pause with an end, what a job missed in it, and what becomes of that when it goes on."""

from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.errors import InvalidInput
from jobs.models import Job, JobClock, JobStatus, Override
from jobs.services.auto_resume import resume_due_jobs
from jobs.services.definition import delete_job, edit_job
from jobs.services.missed import missed_json, missed_so_far
from jobs.services.status import cancel_job, pause_job, resume_job, resume_when_due, resume_with
from jobs.validation.instants import as_text
from runs.models import MissedSpan, Run
from runs.states import Trigger
from tests.support.factories import post_job

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)


def catch_up(policy: str, **more: Any) -> dict[str, Any]:
    return {"policy": policy, "window": "P1D", **more}


def paused_for(ago: timedelta, *, until: datetime | None = None, **spec: Any) -> Job:
    """Make a job that was paused so long ago, in the middle between two of its planned times."""
    job = post_job(schedule={"every": 60}, **spec)
    pause_job(job, "deploy")
    since = database_now() - ago
    Job.objects.filter(pk=job.pk).update(status_at=since, paused_until=until)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE beatkeeper_job_version SET anchor_at = %s WHERE job_id = %s",
            [since - timedelta(seconds=30), job.pk],
        )
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")
    job.refresh_from_db()
    return job


def clock(job: Job) -> datetime | None:
    return JobClock.objects.get(job=job).next_run_at


def planned(job: Job) -> list[datetime]:
    return list(Run.objects.filter(job=job).order_by("planned_at").values_list("planned_at", flat=True))


def test_a_pause_may_have_an_end() -> None:
    until = database_now() + HOUR
    job = pause_job(post_job(schedule={"every": 60}), "deploy", until)
    job.refresh_from_db()
    assert (job.status, job.paused_until, clock(job)) == (JobStatus.PAUSED, until, None)
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, (entry.after or {})["paused_until"]) == ("job.paused", as_text(until))


def test_pausing_again_changes_only_until_when() -> None:
    job = post_job(schedule={"every": 60})
    pause_job(job, "deploy")
    since = Job.objects.get(pk=job.pk).status_at
    until = database_now() + HOUR
    assert pause_job(job, "longer", until).paused_until == until
    assert pause_job(job, "again").paused_until == until
    kept = Job.objects.get(pk=job.pk)
    assert (kept.status_at, kept.status_reason, kept.paused_until) == (since, "deploy", until)
    assert pause_job(job, "", None).paused_until is None
    actions = AuditEntry.objects.filter(object_id=str(job.pk)).values_list("action", flat=True)
    assert list(actions).count("job.paused") == 3


def test_an_end_in_the_past_is_refused() -> None:
    job = post_job(schedule={"every": 60})
    with pytest.raises(InvalidInput) as refused:
        pause_job(job, "", database_now() - MINUTE)
    assert (refused.value.field, refused.value.code) == ("until", "past")
    assert Job.objects.get(pk=job.pk).status == JobStatus.ACTIVE


@pytest.mark.parametrize("end", [resume_job, cancel_job, delete_job])
def test_nothing_is_left_of_the_end_when_the_pause_is_over(end: Any) -> None:
    job = post_job(schedule={"every": 60})
    pause_job(job, "", database_now() + HOUR)
    end(job)
    assert resume_due_jobs() == 0
    if end is not delete_job:
        assert Job.objects.get(pk=job.pk).paused_until is None


def test_resuming_says_what_was_missed_and_runs_the_last() -> None:
    job = paused_for(10 * MINUTE, catch_up=catch_up("last"))
    missed = resume_with(job, "done").missed
    assert missed is not None
    assert (missed.count, missed.exact, missed.policy, missed.runs) == (10, True, "last", 1)
    assert missed.last_at - missed.first_at == 9 * MINUTE
    assert planned(job) == [missed.last_at] and Run.objects.get(job=job).trigger == Trigger.CATCH_UP
    span = MissedSpan.objects.get(job=job)
    assert (span.begins_at, span.ends_at, span.reason) == (missed.first_at, missed.last_at, "paused")
    assert (AuditEntry.objects.latest("id").after or {})["missed"] == missed_json(missed)


def test_resuming_by_skip_runs_nothing() -> None:
    job = paused_for(10 * MINUTE, catch_up=catch_up("skip"))
    missed = resume_with(job).missed
    assert missed and (missed.count, missed.policy, missed.runs) == (10, "skip", 0)
    assert planned(job) == []


def test_resuming_by_all_says_how_many_will_run() -> None:
    job = paused_for(10 * MINUTE, catch_up=catch_up("all"))
    missed = resume_with(job).missed
    assert missed and (missed.count, missed.policy, missed.runs) == (10, "all", 10)
    assert MissedSpan.objects.get(job=job).state == "working"


@pytest.mark.parametrize(("policy", "runs"), [("skip", 0), ("last", 1), ("all", 10)])
def test_another_policy_for_this_once(policy: str, runs: int) -> None:
    job = paused_for(10 * MINUTE, catch_up=catch_up("all" if policy == "skip" else "skip"))
    foreseen = missed_so_far(job, job.spec, database_now(), policy)
    missed = resume_with(job, catch_up=policy).missed
    assert missed and (missed.policy, missed.runs) == (policy, runs)
    assert foreseen and (foreseen.count, foreseen.runs) == (10, runs)
    assert job.spec.catch_up["policy"] != policy


def test_what_is_foreseen_changes_nothing() -> None:
    job = paused_for(10 * MINUTE, catch_up=catch_up("all"))
    missed = missed_so_far(job, job.spec, database_now())
    assert missed and (missed.count, missed.runs) == (10, 10)
    assert not Run.objects.exists() and not MissedSpan.objects.exists()
    assert missed_so_far(post_job(schedule={"every": 60}), job.spec, database_now()) is None


def test_a_pause_in_which_nothing_was_planned_missed_nothing() -> None:
    job = pause_job(post_job(schedule={"every": 3600}))
    assert missed_so_far(job, job.spec, database_now()) is None
    assert resume_with(job).missed is None and not MissedSpan.objects.exists()


def test_more_than_are_counted_is_said() -> None:
    job = paused_for(timedelta(days=8), catch_up=catch_up("skip"))
    missed = resume_with(job).missed
    assert missed and (missed.count, missed.exact) == (10_000, False)


def test_it_goes_on_by_itself_when_its_time_has_come() -> None:
    until = database_now() - timedelta(seconds=5)
    job = paused_for(10 * MINUTE, until=until, catch_up=catch_up("skip"))
    later = pause_job(post_job(schedule={"every": 60}), "", database_now() + HOUR)
    assert resume_due_jobs() == 1 and resume_due_jobs() == 0
    job.refresh_from_db()
    assert (job.status, job.paused_until) == (JobStatus.ACTIVE, None)
    entry = AuditEntry.objects.latest("id")
    assert (entry.action, entry.actor_kind, entry.actor) == ("job.resumed", "system", "scheduler")
    assert entry.reason == "the end of its pause has come"
    assert Job.objects.get(pk=later.pk).status == JobStatus.PAUSED


def test_a_time_planned_right_at_the_end_is_not_missed() -> None:
    """However late the scheduler comes by: the pause was over then."""
    job = paused_for(10 * MINUTE, catch_up=catch_up("skip"))
    until = job.status_at + timedelta(seconds=30) + 9 * MINUTE
    Job.objects.filter(pk=job.pk).update(paused_until=until)
    assert resume_due_jobs() == 1
    assert clock(job) == until
    assert MissedSpan.objects.get(job=job).ends_at == until


def test_a_time_planned_just_before_the_end_is_missed() -> None:
    job = paused_for(10 * MINUTE, catch_up=catch_up("skip"))
    last = job.status_at + timedelta(seconds=30) + 9 * MINUTE
    Job.objects.filter(pk=job.pk).update(paused_until=last + MILLISECOND)
    assert resume_due_jobs() == 1
    assert clock(job) == last + MINUTE


def test_resumed_by_hand_after_its_end_it_owes_the_times_since() -> None:
    until = database_now() - 90 * timedelta(seconds=1)
    job = paused_for(10 * MINUTE, until=until, catch_up=catch_up("skip"))
    missed = resume_with(job).missed
    upcoming = clock(job)
    assert missed and missed.last_at < until and upcoming is not None and until <= upcoming < database_now()


def test_a_schedule_set_after_the_end_plans_nothing_before_itself() -> None:
    job = post_job(schedule={"every": 60})
    pause_job(job)
    Job.objects.filter(pk=job.pk).update(
        paused_until=database_now() - 10 * MINUTE, status_at=database_now() - HOUR
    )
    edited_at = database_now()
    edit_job(job, {"schedule": {"cron": "* * * * * *"}})
    assert resume_due_jobs() == 1
    upcoming = clock(job)
    assert upcoming is not None and upcoming > edited_at


def test_one_that_was_prolonged_meanwhile_stays_paused() -> None:
    job = paused_for(10 * MINUTE, until=database_now() - MINUTE)
    pause_job(job, "longer", database_now() + HOUR)
    assert resume_when_due(job.pk) is None
    assert Job.objects.get(pk=job.pk).status == JobStatus.PAUSED


def test_one_whose_schedule_cannot_be_read_is_unrunnable_and_reported() -> None:
    job = paused_for(10 * MINUTE, until=database_now() - MINUTE)
    other = paused_for(10 * MINUTE, until=database_now() - MINUTE / 2)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE beatkeeper_job_version SET schedule = %s WHERE job_id = %s",
            ['{"cron": "* * * * *", "timezone": "Mars/Olympus"}', job.pk],
        )
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")
    assert resume_due_jobs() == 1 and resume_due_jobs() == 0
    job.refresh_from_db()
    other.refresh_from_db()
    assert job.status == JobStatus.UNRUNNABLE and "Mars/Olympus" in job.status_reason
    assert job.paused_until is None and other.status == JobStatus.ACTIVE
    assert AuditEntry.objects.filter(action="job.unrunnable", object_id=str(job.pk)).count() == 1
    assert MissedSpan.objects.filter(job=job).count() == 1


def test_of_one_that_is_unrunnable_a_time_that_was_moved_on_still_waits() -> None:
    job = paused_for(10 * MINUTE, until=database_now() - MINUTE)
    spec = job.spec
    ahead, come = (spec.anchor_at + minutes * MINUTE for minutes in (3, 5))
    Override.objects.create(job=job, planned_at=ahead, moved_to=database_now() + HOUR)
    Override.objects.create(job=job, planned_at=come, moved_to=come + MINUTE)
    with patch("runs.scheduler.catch_up.catch_up.settle_missed", side_effect=ValueError("its zone is gone")):
        with patch("jobs.services.status.next_after", side_effect=ValueError("its zone is gone")):
            assert resume_when_due(job.pk) is None
    assert Job.objects.get(pk=job.pk).status == JobStatus.UNRUNNABLE
    assert list(job.overrides.filter(done_at=None).values_list("planned_at", flat=True)) == [ahead]
    spans = MissedSpan.objects.filter(job=job)
    assert [spans.filter(begins_at__lte=at, ends_at__gt=at).count() for at in (ahead, come)] == [0, 1]


def test_a_job_that_the_database_refuses_keeps_no_other_from_going_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is the longest overdue, and so the first of every round."""
    poison = paused_for(HOUR, until=database_now() - 2 * MINUTE)
    healthy = paused_for(HOUR, until=database_now() - MINUTE)

    def resume(job_id: UUID) -> Any:
        if job_id == poison.pk:
            raise psycopg.errors.CheckViolation
        return resume_when_due(job_id)

    monkeypatch.setattr("jobs.services.auto_resume.resume_when_due", resume)
    assert resume_due_jobs() == 1
    healthy.refresh_from_db()
    poison.refresh_from_db()
    assert (healthy.status, poison.status) == (JobStatus.ACTIVE, JobStatus.PAUSED)
