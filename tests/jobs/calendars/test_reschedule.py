"""An edited calendar comes to the clocks of its jobs: in rounds, whoever dies, losing and doubling nothing."""

from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.calendars import reschedule as rearming
from jobs.calendars.reschedule import rearm_calendars
from jobs.calendars.service import NO_JOB, create_calendar, delete_calendar, edit_calendar
from jobs.models import JOB_SLICES, Calendar, Job, JobClock, JobStatus, Override, Tenant
from jobs.services.status import pause_job, resume_job
from runs.models import MissedSpan, Run
from runs.scheduler.trigger.trigger import trigger_due
from scheduler_project.sdk.ids import run_id
from tests.support.factories import make_due, make_job, make_pool, make_suspension, make_tenant, now, post_job

pytestmark = pytest.mark.django_db
DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
# A round that ends by its number of jobs alone.
LONG = 60.0


@pytest.fixture
def calendar() -> Calendar:
    return create_calendar(make_tenant(), {"name": "days"})


def at_noon(tenant: Tenant, on_closed: str = "exclude", **spec: Any) -> Job:
    return post_job(
        tenant, schedule={"cron": "0 12 * * *", "calendar": {"name": "days", "on_closed": on_closed}}, **spec
    )


def next_of(job: Job) -> datetime | None:
    return JobClock.objects.get(job=job).next_run_at


def known(job: Job) -> datetime:
    found = next_of(job)
    assert found is not None
    return found


def close(calendar: Calendar, *days: datetime) -> Calendar:
    return edit_calendar(calendar, {"dates": [day.date().isoformat() for day in days]})


def rearm_all(limit: int = 1000) -> int:
    rounds = 0
    while rearm_calendars(limit, LONG):
        rounds += 1
        assert rounds < 100
    return rounds


def waiting(calendar: Calendar) -> UUID | None:
    calendar.refresh_from_db()
    return calendar.rearmed_to


def trigger() -> int:
    connection.ensure_connection()
    return trigger_due(connection.connection, range(JOB_SLICES)).runs


def edited_before(calendar: Calendar, seconds: int) -> datetime:
    """Date the edit back; no scheduler has passed since."""
    edited_at = now() - seconds * SECOND
    Calendar.objects.filter(pk=calendar.pk).update(updated_at=edited_at)
    return edited_at


def every_second(calendar: Calendar, overlap: str = "allow_all") -> Job:
    """Make a job that is an hour old; its next time follows from the calendar as it was."""
    spec = {
        "schedule": {
            "cron": "* * * * * *",
            "timezone": "UTC",
            "calendar": {"name": "days", "on_closed": "exclude"},
        },
        "calendar": calendar,
        "overlap": overlap,
        "anchor_at": now() - 3600 * SECOND,
    }
    tomorrow = now().replace(hour=0, minute=0, second=0, microsecond=0) + 2 * DAY
    return make_job(
        calendar.tenant, make_pool(), next_run_at=tomorrow, spec=spec, status_at=now() - 3600 * SECOND
    )


def test_a_day_that_closes_moves_the_next_time(calendar: Calendar) -> None:
    left_out, moved = at_noon(calendar.tenant), at_noon(calendar.tenant, "next")
    plain = post_job(calendar.tenant, schedule={"cron": "0 12 * * *"})
    first = known(left_out)
    close(calendar, first)
    assert waiting(calendar) == NO_JOB
    assert [known(job) for job in (left_out, moved, plain)] == [first] * 3
    assert rearm_calendars(seconds=LONG) == 2
    assert waiting(calendar) is None
    assert [known(job) for job in (left_out, moved, plain)] == [first + DAY, first + DAY, first]
    assert rearm_calendars() == 0


def test_a_day_that_opens_comes_at_once(calendar: Calendar) -> None:
    job = at_noon(calendar.tenant)
    first = known(job)
    close(calendar, first, first + DAY)
    rearm_all()
    assert known(job) == first + 2 * DAY
    close(calendar, first)
    rearm_all()
    assert known(job) == first + DAY


def test_it_goes_on_where_a_scheduler_died(calendar: Calendar) -> None:
    jobs = [at_noon(calendar.tenant) for _ in range(7)]
    first = known(jobs[0])
    close(calendar, first)
    assert rearm_calendars(3, LONG) == 3
    in_order = sorted(jobs, key=lambda job: job.pk)
    assert waiting(calendar) == in_order[2].pk
    assert [known(job) for job in in_order] == [first + DAY] * 3 + [first] * 4

    class Died(BaseException):
        pass

    real, done = rearming._rearm, list[Any]()

    def dies_at_the_second(spec: Any, edited: Calendar) -> None:
        if done:
            raise Died
        done.append(spec)
        real(spec, edited)

    with patch.object(rearming, "_rearm", dies_at_the_second), pytest.raises(Died):
        rearm_calendars(3, LONG)
    assert waiting(calendar) == in_order[2].pk
    assert rearm_all(3) == 2
    assert waiting(calendar) is None and {known(job) for job in jobs} == {first + DAY}


def test_many_calendars_share_a_round() -> None:
    jobs = []
    for _ in range(3):
        calendar = create_calendar(make_tenant(), {"name": "days"})
        jobs += [at_noon(calendar.tenant) for _ in range(4)]
        close(calendar, known(jobs[-1]))
    assert rearm_calendars(6, LONG) == 6
    left = Calendar.objects.exclude(rearmed_to=None)
    assert left.count() == 3 and not left.filter(rearmed_to=NO_JOB).exists()
    rearm_all(6)
    assert len({next_of(job) for job in jobs}) == 1 and not left.exists()


def test_what_is_due_is_triggered_first(calendar: Calendar) -> None:
    job = at_noon(calendar.tenant)
    first = known(job)
    planned = make_due(job)
    close(calendar, first)
    rearm_all()
    assert Run.objects.get(job=job).pk == run_id(job.pk, planned)
    assert known(job) == first + DAY


@pytest.mark.parametrize("overlap", ["allow_all", "cancel_other"])
def test_times_since_the_edit_are_made_up_for_once(calendar: Calendar, overlap: str) -> None:
    """Opened five seconds ago, and again gone through after its runs were made: each second has one run."""
    job = every_second(calendar, overlap)
    close(calendar, now(), now() + DAY)
    edit_calendar(calendar, {"dates": []})
    edited_at = edited_before(calendar, 5)
    rearm_all()
    first = edited_at.replace(microsecond=0) + SECOND
    assert known(job) == first
    trigger()
    times = list(Run.objects.filter(job=job).order_by("id").values_list("planned_at", flat=True))
    assert len(times) >= 4 and times == [first + n * SECOND for n in range(len(times))]
    last = Run.objects.get(job=job, planned_at=times[-1])
    assert last.state is None
    Calendar.objects.filter(pk=calendar.pk).update(rearmed_to=NO_JOB)
    rearm_all()
    assert known(job) > times[-1]
    last.refresh_from_db()
    # Only a later time ends it, and there may be one by now.
    assert last.state is None or Run.objects.filter(job=job, planned_at__gt=last.planned_at).exists()
    trigger()
    planned = list(Run.objects.filter(job=job).order_by("id").values_list("planned_at", flat=True))
    assert planned == [first + n * SECOND for n in range(len(planned))]


def test_times_since_the_edit_that_were_reported_already_are_not_reported_again(calendar: Calendar) -> None:
    """Under a pause they have no runs, and lie in a span."""
    job = every_second(calendar)
    make_suspension(tenant=calendar.tenant)
    close(calendar, now(), now() + DAY)
    edit_calendar(calendar, {"dates": []})
    edited_before(calendar, 5)
    rearm_all()
    trigger()
    span = MissedSpan.objects.get(job=job)
    Calendar.objects.filter(pk=calendar.pk).update(rearmed_to=NO_JOB)
    rearm_all()
    assert known(job) >= span.ends_at
    trigger()
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE
    assert MissedSpan.objects.get(job=job).begins_at == span.begins_at and not Run.objects.exists()


def test_a_job_younger_than_the_edit_makes_up_for_nothing_before_itself(calendar: Calendar) -> None:
    spec = {"cron": "* * * * * *", "calendar": {"name": "days"}}
    close(calendar, now() + 5 * DAY)
    job = post_job(calendar.tenant, schedule=spec)
    edited_before(calendar, 60)
    JobClock.objects.filter(job=job).update(next_run_at=now() + DAY)
    rearm_all()
    assert known(job) > job.created_at


def test_a_paused_job_stays_so_and_resumes_by_the_new_edition(calendar: Calendar) -> None:
    job = at_noon(calendar.tenant)
    first = known(job)
    pause_job(job)
    close(calendar, first)
    rearm_all()
    assert next_of(job) is None and waiting(calendar) is None
    resume_job(job)
    assert known(job) == first + DAY


def test_a_schedule_without_any_open_time_ends_and_goes_on_when_it_has_one(calendar: Calendar) -> None:
    job = at_noon(calendar.tenant)
    first = known(job)
    edit_calendar(calendar, {"weekly": {"mon": [["08:00", "09:00"]]}})
    rearm_all()
    job.refresh_from_db()
    assert job.status == JobStatus.FINISHED and next_of(job) is None
    assert job.status_reason == "No time of its schedule is open in days."
    edit_calendar(calendar, {"weekly": {}})
    rearm_all()
    job.refresh_from_db()
    assert job.status == JobStatus.ACTIVE and known(job) == first
    entry = AuditEntry.objects.get(action="job.resumed")
    assert entry.reason == "the calendar days was edited" and entry.actor == "scheduler"


def test_one_time_that_has_run_does_not_run_again_where_its_own_day_opens(calendar: Calendar) -> None:
    day = now().replace(hour=12, minute=0, second=0, microsecond=0) + 3 * DAY
    close(calendar, day)
    at = f"{day:%Y-%m-%dT%H:%M:%SZ}"
    job = post_job(
        calendar.tenant, schedule={"at": at, "calendar": {"name": "days", "on_closed": "previous"}}
    )
    assert known(job) == day - DAY
    JobClock.objects.filter(job=job).update(next_run_at=None)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.FINISHED)
    close(calendar)
    rearm_all()
    job.refresh_from_db()
    assert job.status == JobStatus.FINISHED and next_of(job) is None


def test_a_job_that_cannot_be_read_is_unrunnable_and_the_others_go_on(calendar: Calendar) -> None:
    spec = {"schedule": {"cron": "61 * * * *", "calendar": {"name": "days"}}, "calendar": calendar}
    poison = make_job(calendar.tenant, make_pool(), next_run_at=now() + DAY, spec=spec)
    jobs = [at_noon(calendar.tenant) for _ in range(4)]
    first = known(jobs[0])
    close(calendar, first)
    rearm_all()
    poison.refresh_from_db()
    assert poison.status == JobStatus.UNRUNNABLE and "61 is above 59" in poison.status_reason
    assert next_of(poison) is None and {known(job) for job in jobs} == {first + DAY}
    assert AuditEntry.objects.get(action="job.unrunnable").object_id == str(poison.pk)


def test_changes_of_single_times_that_are_closed_now_are_dropped(calendar: Calendar) -> None:
    job = at_noon(calendar.tenant)
    first = known(job)
    for days, moved_to in ((2, first + 2 * DAY + timedelta(hours=1)), (3, None)):
        Override.objects.create(job=job, planned_at=first + days * DAY, moved_to=moved_to)
    close(calendar, first + 2 * DAY)
    rearm_all()
    assert [change.planned_at for change in job.overrides.all()] == [first + 3 * DAY]
    entry: Any = AuditEntry.objects.get(action="job.edited")
    assert entry.after["dropped_overrides"][0]["planned_at"].startswith(f"{first + 2 * DAY:%Y-%m-%dT%H:%M}")
    assert known(job) == first


def test_a_deleted_calendar_waits_for_nobody(calendar: Calendar) -> None:
    close(calendar, now())
    delete_calendar(calendar)
    assert rearm_calendars() == 0 and not Calendar.objects.exclude(rearmed_to=None).exists()


def test_most_clocks_only_need_a_look(calendar: Calendar) -> None:
    """A date far ahead: no clock is locked, let alone written."""
    jobs = [at_noon(calendar.tenant) for _ in range(5)]
    close(calendar, known(jobs[0]) + 90 * DAY)
    with patch("jobs.calendars.reschedule.lock", side_effect=AssertionError("locked")):
        assert rearm_calendars(seconds=LONG) == 5
    assert waiting(calendar) is None


def test_its_jobs_are_found_by_an_index(calendar: Calendar) -> None:
    at_noon(calendar.tenant)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        specs = rearming._next_specs(close(calendar, now()), 100)
        plan = specs.explain()  # type: ignore[attr-defined]
    assert "job_version_calendar_idx" in plan
    assert "calendar_rearming_idx" in Calendar.objects.exclude(rearmed_to=None).explain()
