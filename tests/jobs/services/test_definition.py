"""Every change of a job: what it leaves behind, and what it must not touch."""

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from auditlog.models import AuditEntry
from jobs.clock import database_now
from jobs.errors import Conflict, DuplicateName, InstantTaken, InvalidInput, JobNotRunnable, Missing
from jobs.models import Job, JobClock, JobStatus, JobVersion, Pool
from jobs.services.definition import create_job, delete_job, edit_job
from jobs.services.status import cancel_job, pause_job, resume_job
from runs.models import JobGate, LiveRun, MissedSpan, Run
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk.ids import run_id
from tests.support.factories import job_spec, make_due, make_finished_run, make_run, make_tenant, post_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db
EVERY_MINUTE = {"every": 60}
FAR = "2099-01-01T00:00:00Z"


def clock(job: Job) -> JobClock:
    return JobClock.objects.get(job=job)


def last_entry(job: Job) -> AuditEntry:
    return AuditEntry.objects.filter(object_id=str(job.pk)).latest("id")


def test_an_interval_counts_from_its_creation() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    assert clock(job).next_run_at == job.spec.anchor_at + timedelta(seconds=60)
    assert clock(job).slice == job.pk.int % 64


def test_the_clock_keeps_the_priority_for_the_order_of_what_is_due_together() -> None:
    job = post_job(schedule=EVERY_MINUTE, priority=900)
    assert clock(job).priority == 900
    before = clock(job).next_run_at
    edit_job(job, {"priority": 100})
    assert (clock(job).priority, clock(job).next_run_at) == (100, before)


def test_an_edit_of_the_target_writes_a_version_and_leaves_the_clock() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    before, anchor = clock(job).next_run_at, job.spec.anchor_at
    edited = edit_job(job, {"target": {"kind": "command", "argv": ["ls"]}})
    assert edited.version == 2 and edited.spec.target_key == "kind:command"
    assert clock(job).next_run_at == before and edited.spec.anchor_at == anchor
    assert JobVersion.objects.filter(job=job).count() == 2


@pytest.mark.parametrize(
    "changes", [{"priority": 900}, {"tags": {"a": "b"}}, {"description": "x"}, {"name": "y"}]
)
def test_an_edit_of_the_job_itself_writes_a_version_and_leaves_the_clock(changes: dict[str, object]) -> None:
    job = post_job(schedule=EVERY_MINUTE)
    before, first = clock(job).next_run_at, job.spec
    edited = edit_job(job, changes)
    assert edited.version == 2 and clock(job).next_run_at == before
    kept = edited.spec.job_fields
    assert (edited.spec.schedule, edited.spec.anchor_at) == (first.schedule, first.anchor_at)
    assert first.job_fields is not None and kept == {**first.job_fields, **changes}
    entry = last_entry(job)
    assert entry.action == "job.edited" and entry.after == {**changes, "version": 2}


def test_a_run_keeps_the_version_it_was_made_with() -> None:
    job = post_job(schedule=EVERY_MINUTE, overlap="allow_all")
    planned = make_due(job)
    edit_job(job, {"tags": {"a": "b"}})
    assert Run.objects.get(job=job, planned_at=planned).version == 1
    planned = make_due(job)
    edit_job(job, {"tags": {}})
    assert Run.objects.get(job=job, planned_at=planned).version == 2


def test_an_edit_that_changes_nothing_leaves_no_trace() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    entries = AuditEntry.objects.count()
    same = edit_job(job, {"schedule": EVERY_MINUTE, "priority": 500})
    assert (same.version, same.updated_at) == (1, job.updated_at)
    assert AuditEntry.objects.count() == entries


def test_a_new_schedule_plans_from_now() -> None:
    job = post_job(schedule={"cron": "0 0 1 * *"})
    edited = edit_job(job, {"schedule": {"every": 300}})
    assert edited.version == 2
    assert clock(job).next_run_at == edited.spec.anchor_at + timedelta(seconds=300)
    assert edited.spec.anchor_at <= database_now()


def test_an_edit_first_triggers_what_is_due_under_the_old_schedule() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    planned = make_due(job)
    edit_job(job, {"schedule": {"cron": "0 0 1 1 *"}})
    run = Run.objects.get(job=job)
    assert run.pk == run_id(job.pk, planned) and run.version == 1
    upcoming = clock(job).next_run_at
    assert upcoming is not None and (upcoming.month, upcoming.day) == (1, 1)


def test_a_refused_edit_triggers_nothing_by_itself() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    planned = make_due(job)
    with pytest.raises(InvalidInput):
        edit_job(job, {"priority": 2000})
    assert not Run.objects.filter(job=job).exists() and clock(job).next_run_at == planned


def test_a_monthly_job_made_frequent_owes_nothing_for_the_past() -> None:
    job = post_job(schedule={"cron": "0 0 1 * *"})
    edit_job(job, {"schedule": {"cron": "*/5 * * * *"}})
    upcoming = clock(job).next_run_at
    assert upcoming is not None and upcoming > database_now()
    assert not Run.objects.filter(job=job).exists()


def test_a_job_can_become_on_demand() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    edit_job(job, {"schedule": None})
    assert clock(job).next_run_at is None


def test_a_limit_comes_and_goes_with_its_gate() -> None:
    job = post_job()
    live = make_run(job)
    edit_job(job, {"max_concurrency": 2})
    assert JobGate.objects.get(job=job).max_running == 2
    assert LiveRun.objects.get(pk=live.pk).gated
    edit_job(job, {"max_concurrency": None})
    assert not JobGate.objects.filter(job=job).exists()
    assert not LiveRun.objects.get(pk=live.pk).gated


def test_a_pool_must_export_the_present_target() -> None:
    job = post_job()
    Pool.objects.create(slug="other", shared=True)
    with pytest.raises(InvalidInput) as refused:
        edit_job(job, {"pool": "other"})
    assert refused.value.field == "target.task"


def test_a_name_cannot_be_changed_to_a_taken_one() -> None:
    tenant = make_tenant()
    post_job(tenant, name="first")
    job = post_job(tenant, name="second")
    with pytest.raises(DuplicateName):
        edit_job(job, {"name": "first", "priority": 1})
    job.refresh_from_db()
    assert (job.name, job.priority) == ("second", 500)


def test_a_one_time_job_cannot_go_back_to_an_instant_that_has_its_run() -> None:
    job = post_job(schedule={"at": FAR})
    at = database_now() - timedelta(minutes=5)
    run = make_finished_run(job, FinalState.SUCCEEDED, planned_at=at)
    with pytest.raises(InstantTaken) as refused:
        edit_job(job, {"schedule": {"at": at.isoformat()}})
    assert refused.value.field == "schedule.at" and str(run.pk) in refused.value.link
    assert job.spec.schedule == {"at": "2099-01-01T00:00:00.000Z"}


def test_an_instant_whose_run_is_unfinished_is_taken_as_well() -> None:
    job = post_job(schedule={"at": FAR})
    at = database_now() + timedelta(minutes=5)
    make_run(job, planned_at=at)
    with pytest.raises(InstantTaken):
        edit_job(job, {"schedule": {"at": at.isoformat()}})


def test_a_one_time_job_set_to_a_free_past_instant_is_refused_as_past() -> None:
    job = post_job(schedule={"at": FAR})
    with pytest.raises(InvalidInput) as refused:
        edit_job(job, {"schedule": {"at": "2001-01-01T00:00:00Z"}})
    assert refused.value.code == "past"


def test_a_finished_job_with_a_new_schedule_goes_on() -> None:
    at = database_now() + timedelta(seconds=1)
    job = post_job(schedule={"at": at.isoformat()})
    wait_until(lambda: database_now() > at, 15, "the instant to pass")
    edit_job(job, {"description": "settles what is due"})
    job.refresh_from_db()
    assert Run.objects.get(job=job).planned_at == at
    assert job.status == JobStatus.FINISHED and clock(job).next_run_at is None
    edited = edit_job(job, {"schedule": EVERY_MINUTE})
    assert edited.status == JobStatus.ACTIVE and clock(job).next_run_at is not None


def test_a_paused_job_has_no_planned_times() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    paused = pause_job(job, "maintenance")
    assert paused.status == JobStatus.PAUSED and paused.status_reason == "maintenance"
    assert paused.status_by == "system" and clock(job).next_run_at is None
    assert last_entry(job).action == "job.paused" and last_entry(job).reason == "maintenance"


def test_pausing_first_triggers_what_is_due() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    make_due(job)
    pause_job(job)
    assert Run.objects.filter(job=job).count() == 1 and clock(job).next_run_at is None


def test_pausing_or_resuming_twice_changes_nothing_the_second_time() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    pause_job(job)
    entries = AuditEntry.objects.count()
    pause_job(job, "again")
    assert AuditEntry.objects.count() == entries
    resume_job(job)
    entries, upcoming = AuditEntry.objects.count(), clock(job).next_run_at
    resume_job(job)
    assert AuditEntry.objects.count() == entries and clock(job).next_run_at == upcoming


def test_an_edit_of_a_paused_job_leaves_it_paused() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    pause_job(job)
    edited = edit_job(job, {"schedule": {"every": 5}})
    assert edited.status == JobStatus.PAUSED and clock(job).next_run_at is None


def test_resuming_goes_on_after_now_and_tells_what_was_missed() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    pause_job(job)
    since = database_now() - timedelta(minutes=10)
    Job.objects.filter(pk=job.pk).update(status_at=since)
    shift_anchor(job, since - timedelta(seconds=30))
    resumed = resume_job(job)
    upcoming = clock(job).next_run_at
    assert resumed.status == JobStatus.ACTIVE and upcoming is not None and upcoming > database_now()
    span, run = MissedSpan.objects.get(job=job), Run.objects.get(job=job)
    assert (span.reason, span.policy, span.version) == ("paused", "last", 1)
    assert span.begins_at == since + timedelta(seconds=30) and span.ends_at == run.planned_at
    assert run.trigger == Trigger.CATCH_UP and run.planned_at == upcoming - timedelta(seconds=60)


def test_a_pause_of_an_unrunnable_job_tells_what_was_missed_before_it() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    since = database_now() - timedelta(minutes=10)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.UNRUNNABLE, status_at=since)
    shift_anchor(job, since - timedelta(seconds=30))
    pause_job(job)
    span = MissedSpan.objects.get(job=job)
    assert (span.reason, span.begins_at) == ("unrunnable", since + timedelta(seconds=30))
    resume_job(job)
    assert MissedSpan.objects.filter(job=job).count() == 1


def test_a_schedule_set_during_a_pause_missed_nothing_before_it() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    pause_job(job)
    since = database_now() - timedelta(minutes=10)
    Job.objects.filter(pk=job.pk).update(status_at=since)
    shift_anchor(job, since - timedelta(seconds=30))
    edit_job(job, {"schedule": {"cron": "* * * * * *"}})
    span = MissedSpan.objects.get(job=job)
    assert (span.version, span.begins_at) == (1, since + timedelta(seconds=30))
    edited_at = job.versions.get(version=2).anchor_at
    resume_job(job)
    assert not MissedSpan.objects.filter(job=job, version=2, begins_at__lt=edited_at).exists()


def test_a_short_pause_without_a_planned_time_leaves_no_span() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    pause_job(job)
    resume_job(job)
    assert not MissedSpan.objects.filter(job=job).exists()


def test_a_one_time_job_whose_instant_passed_in_a_pause_is_finished() -> None:
    at = database_now() + timedelta(hours=1)
    job = post_job(schedule={"at": at.isoformat()})
    pause_job(job)
    with at_later(hours=2):
        resumed = resume_job(job)
    assert resumed.status == JobStatus.FINISHED and clock(job).next_run_at is None
    run = Run.objects.get(job=job)
    assert (run.planned_at, run.trigger) == (at, Trigger.CATCH_UP) and not MissedSpan.objects.exists()


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELLED])
def test_only_a_job_that_is_held_can_be_resumed(status: JobStatus) -> None:
    job = post_job()
    Job.objects.filter(pk=job.pk).update(status=status)
    with pytest.raises(JobNotRunnable):
        resume_job(job)
    with pytest.raises(JobNotRunnable):
        pause_job(job)


def test_an_unrunnable_job_goes_on_with_a_new_schedule() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.UNRUNNABLE)
    JobClock.objects.filter(job=job).update(next_run_at=None)
    assert edit_job(job, {"schedule": {"every": 5}}).status == JobStatus.ACTIVE
    assert clock(job).next_run_at is not None


def test_cancelling_is_for_good_and_ends_what_is_unfinished() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    ready, running = make_run(job), make_run(job, LiveState.RUNNING)
    cancelled = cancel_job(job, "no longer needed")
    assert cancelled.status == JobStatus.CANCELLED and clock(job).next_run_at is None
    ended = Run.objects.get(pk=ready.pk)
    assert (ended.state, ended.ended_from, ended.reason) == (
        "cancelled",
        "ready",
        "job_ended: no longer needed",
    )
    assert not LiveRun.objects.filter(pk=ready.pk).exists()
    assert LiveRun.objects.get(pk=running.pk).cancel_requested_at is not None
    for service in (pause_job, resume_job):
        with pytest.raises(Conflict):
            service(job)
    with pytest.raises(Conflict):
        edit_job(job, {"priority": 1})
    assert cancel_job(job).status == JobStatus.CANCELLED


def test_many_runs_end_with_their_job_in_few_statements() -> None:
    short, long = job_with_runs(2), job_with_runs(30)
    assert count_queries(lambda: cancel_job(long)) == count_queries(lambda: cancel_job(short))
    assert AuditEntry.objects.filter(action="run.cancelled").count() == 32
    assert not LiveRun.objects.exists()


def test_deleting_cancels_unfinished_runs_and_keeps_finished_ones() -> None:
    job = post_job(schedule=EVERY_MINUTE)
    finished, ready = make_finished_run(job), make_run(job)
    delete_job(job)
    job.refresh_from_db()
    assert job.deleted_at is not None and clock(job).next_run_at is None
    assert Run.objects.get(pk=ready.pk).state == "cancelled"
    assert Run.objects.get(pk=finished.pk).state == "succeeded"
    assert last_entry(job).action == "job.deleted"
    with pytest.raises(Missing):
        delete_job(job)


def test_a_change_and_its_entry_stand_or_fall_together(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no entry")

    job = post_job(schedule=EVERY_MINUTE)
    make_run(job)
    for module in ("definition", "locking"):
        monkeypatch.setattr(f"jobs.services.{module}.record", fail)
    for change in (
        lambda: edit_job(job, {"priority": 1}),
        lambda: pause_job(job),
        lambda: cancel_job(job),
        lambda: delete_job(job),
        lambda: create_job(job.tenant, job_spec(name="never")),
    ):
        with pytest.raises(RuntimeError, match="no entry"):
            change()
    job.refresh_from_db()
    assert (job.status, job.priority, job.deleted_at) == (JobStatus.ACTIVE, 500, None)
    assert clock(job).next_run_at is not None and LiveRun.objects.filter(job=job).count() == 1
    assert not Job.objects.filter(name="never").exists()


def test_a_manual_run_does_not_take_an_instant() -> None:
    job = post_job(schedule={"at": FAR})
    at = database_now() + timedelta(minutes=5)
    make_finished_run(job, planned_at=at, trigger=Trigger.MANUAL)
    edit_job(job, {"schedule": {"at": at.isoformat()}})
    assert clock(job).next_run_at == at


def job_with_runs(number: int) -> Job:
    job = post_job()
    for n in range(number):
        make_run(job, planned_at=database_now() - timedelta(seconds=n))
    return job


def count_queries(action: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as queries:
        action()
    return len(queries)


def shift_anchor(job: Job, anchor_at: datetime) -> None:
    """Write an old version past the guard, because a version never changes."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(
            "UPDATE beatkeeper_job_version SET anchor_at = %s WHERE job_id = %s", [anchor_at, job.pk]
        )
        cursor.execute("SET LOCAL session_replication_role = DEFAULT")


class at_later:  # noqa: N801 - reads as a statement
    """The database's clock as the services read it, so much later."""

    def __init__(self, **ahead: float) -> None:
        self.ahead = timedelta(**ahead)
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        self.patch.setattr("jobs.services.locking.database_now", lambda: database_now() + self.ahead)

    def __exit__(self, *_: object) -> None:
        self.patch.undo()
