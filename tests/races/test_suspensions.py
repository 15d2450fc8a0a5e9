"""Pauses, resumes and changed times against each other and the scheduler: who comes second sees the first."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from auditlog.models import AuditEntry
from jobs.access import pools
from jobs.clock import database_now
from jobs.errors import InstantTaken, InvalidInput, Missing
from jobs.models import JOB_SLICES, Job, JobClock, JobStatus, Override, Suspension
from jobs.services.auto_resume import resume_due_jobs
from jobs.services.definition import edit_job
from jobs.services.overrides import set_override
from jobs.services.status import pause_job, resume_job, resume_when_due
from jobs.suspensions.service import (
    SuspensionHasBegun,
    SuspensionIsOver,
    delete_suspension,
    edit_suspension,
    lift_suspension,
)
from jobs.validation.instants import as_text
from runs.models import MissedSpan, Run
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.recovery.recover import RecoveryMemory
from runs.scheduler.recovery_loop import RecoveryLoop
from runs.scheduler.trigger.suspensions import end_suspension, lock_over_suspension
from runs.scheduler.trigger.trigger import trigger_due
from tests.races.staging import dsn, held_open, result_after, second_connection, waiting_for
from tests.support.factories import make_due, make_pool, make_suspension, now, post_job
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


def test_of_two_lifts_one_ends_it() -> None:
    suspension = make_suspension()
    with held_open() as holder:
        first = lift_suspension(suspension, "first")
        second = result_after(holder, lambda: lift_suspension(suspension, "second"))
    assert first.lifted_at == second.lifted_at == Suspension.objects.get().lifted_at
    assert actions() == ["suspension.lifted"]


def test_an_edit_that_meets_a_lift_is_refused() -> None:
    suspension = make_suspension(ends_at=now() + HOUR)
    with held_open() as holder:
        lift_suspension(suspension)
        with pytest.raises(SuspensionIsOver):
            result_after(holder, lambda: edit_suspension(suspension, {"ends_at": as_text(now() + 9 * HOUR)}))
    assert actions() == ["suspension.lifted"]


def test_a_lift_that_meets_an_edit_ends_what_was_made_longer() -> None:
    suspension = make_suspension(ends_at=now() + HOUR)
    end = as_text(now() + 9 * HOUR)
    with held_open() as holder:
        edit_suspension(suspension, {"ends_at": end})
        result_after(holder, lambda: lift_suspension(suspension))
    kept = Suspension.objects.get()
    assert kept.lifted_at is not None and as_text(kept.ends_at or now()) == end


def test_one_that_is_deleted_meanwhile_is_missing() -> None:
    suspension = make_suspension(begins_at=now() + HOUR)
    with held_open() as holder:
        delete_suspension(suspension)
        with pytest.raises(Missing):
            result_after(holder, lambda: lift_suspension(suspension))


def test_a_deletion_that_waits_until_it_has_begun_is_refused() -> None:
    begins = database_now() + timedelta(seconds=1)
    suspension = make_suspension(begins_at=begins)
    with held_open() as holder:
        edit_suspension(suspension, {"reason": "held"})
        with waiting_for(holder, lambda: delete_suspension(suspension)) as deletion:
            wait_until(lambda: database_now() > begins, 15, "the suspension to begin")
            holder.execute("COMMIT")
            with pytest.raises(SuspensionHasBegun):
                deletion.result(timeout=60)


def test_a_suspension_made_longer_at_its_last_moment_is_not_settled() -> None:
    """The scheduler read its end before; the row says otherwise when the edit has let go."""
    ends = database_now() + timedelta(seconds=1)
    suspension = make_suspension(ends_at=ends)
    with second_connection() as scheduler:
        with held_open() as holder:
            edit_suspension(suspension, {"ends_at": as_text(now() + HOUR)})
            wait_until(lambda: database_now() > ends, 15, "the end that was")
            with scheduler.transaction():
                assert not lock_over_suspension(scheduler, suspension.pk, database_now())
            holder.execute("COMMIT")
        with scheduler.transaction():
            assert not lock_over_suspension(scheduler, suspension.pk, database_now())
            assert not end_suspension(scheduler, suspension.pk, database_now())
    assert Suspension.objects.get().settled_at is None


def test_two_who_end_a_suspension_tell_it_once() -> None:
    suspension = make_suspension(ends_at=now() - HOUR / 2)
    with second_connection() as first:
        with first.transaction():
            assert lock_over_suspension(first, suspension.pk, now()) and end_suspension(
                first, suspension.pk, now()
            )
            with second_connection() as second:
                assert not lock_over_suspension(second, suspension.pk, now())
        with second_connection() as second:
            assert not end_suspension(second, suspension.pk, now())
    assert actions() == ["suspension.ended"]


def test_two_pauses_of_a_pool_make_one() -> None:
    pool = make_pool()
    with held_open() as holder:
        pools.pause_pool(pool, "first")
        result_after(holder, lambda: pools.pause_pool(pool, "second"))
    assert Suspension.objects.get().reason == "first"


def paused_until_now(job: Job) -> None:
    pause_job(job)
    Job.objects.filter(pk=job.pk).update(status_at=now() - HOUR, paused_until=now() - timedelta(seconds=1))


def test_a_resume_that_meets_the_automatic_one_finds_it_done() -> None:
    job = post_job(schedule={"every": 60})
    paused_until_now(job)
    with held_open() as holder:
        assert resume_when_due(job.pk) is not None
        assert result_after(holder, lambda: resume_job(job)).status == JobStatus.ACTIVE
    assert actions().count("job.resumed") == 1


def test_the_automatic_resume_that_meets_one_by_hand_finds_it_done() -> None:
    job = post_job(schedule={"every": 60})
    paused_until_now(job)
    with held_open() as holder:
        resume_job(job)
        assert result_after(holder, lambda: resume_when_due(job.pk)) is None
    assert actions().count("job.resumed") == 1 and MissedSpan.objects.count() <= 1


def test_the_automatic_resume_that_meets_a_longer_pause_leaves_it() -> None:
    job = post_job(schedule={"every": 60})
    paused_until_now(job)
    with held_open() as holder:
        pause_job(job, "longer", now() + HOUR)
        assert result_after(holder, lambda: resume_when_due(job.pk)) is None
    assert Job.objects.get(pk=job.pk).status == JobStatus.PAUSED


def test_a_job_in_somebodys_hands_keeps_no_other_from_going_on() -> None:
    held, free = post_job(schedule={"every": 60}), post_job(schedule={"every": 60})
    paused_until_now(held)
    paused_until_now(free)
    with second_connection() as other:
        with other.transaction():
            other.execute("SELECT FROM beatkeeper_job_clock WHERE job_id = %s FOR UPDATE", [held.pk])
            assert resume_due_jobs() == 1
    assert Job.objects.get(pk=free.pk).status == JobStatus.ACTIVE
    assert resume_due_jobs() == 1


def planned(job: Job) -> str:
    at = JobClock.objects.get(job=job).next_run_at
    assert at is not None
    return as_text(at)


def test_a_change_that_meets_the_trigger_of_its_time_is_refused_with_the_run() -> None:
    job = post_job(schedule={"every": 60})
    at = as_text(make_due(job))
    with second_connection() as scheduler:
        with scheduler.transaction():
            assert trigger_due(scheduler, range(JOB_SLICES)).runs == 1
            with pytest.raises(InstantTaken):
                result_after(scheduler, lambda: set_override(job, {"planned_at": at, "skip": True}))
    assert Run.objects.filter(job=job, state=None).count() == 1 and not Override.objects.exists()


def test_a_trigger_that_meets_a_change_leaves_the_job_to_it() -> None:
    job = post_job(schedule={"every": 60})
    later = planned(job)
    due = make_due(job)
    with second_connection() as scheduler, held_open() as holder:
        set_override(job, {"planned_at": later, "skip": True})
        with scheduler.transaction():
            assert trigger_due(scheduler, range(JOB_SLICES)).runs == 0
        holder.execute("COMMIT")
        with scheduler.transaction():
            assert trigger_due(scheduler, range(JOB_SLICES)).runs == 0
    assert Run.objects.get(job=job).planned_at == due and planned(job) == later


def test_a_change_that_meets_an_edit_is_judged_by_the_new_schedule() -> None:
    job = post_job(schedule={"every": 60})
    at = planned(job)
    with held_open() as holder:
        edit_job(job, {"schedule": {"cron": "0 0 1 1 *"}})
        with pytest.raises(InvalidInput) as refused:
            result_after(holder, lambda: set_override(job, {"planned_at": at, "skip": True}))
    assert refused.value.code == "not_planned" and not Override.objects.exists()


def test_an_edit_that_meets_a_change_drops_it() -> None:
    job = post_job(schedule={"every": 60})
    at = planned(job)
    with held_open() as holder:
        set_override(job, {"planned_at": at, "skip": True})
        result_after(holder, lambda: edit_job(job, {"schedule": {"cron": "0 0 1 1 *"}}))
    assert not Override.objects.exists()
    assert "dropped_overrides" in (AuditEntry.objects.latest("id").after or {})


def test_two_changes_of_one_time_are_one_and_the_last_counts() -> None:
    job = post_job(schedule={"every": 60})
    at = planned(job)
    with held_open() as holder:
        set_override(job, {"planned_at": at, "skip": True, "reason": "first"})
        result_after(holder, lambda: set_override(job, {"planned_at": at, "skip": True, "reason": "last"}))
    assert Override.objects.get().reason == "last"


@pytest.fixture
def recovery() -> Iterator[RecoveryLoop]:
    with LockSession(dsn(), "recovery of a test") as session:
        yield RecoveryLoop(session, RecoveryMemory(), lambda: None)


def test_the_recovery_loop_lets_paused_jobs_go_on(recovery: RecoveryLoop) -> None:
    job, later = post_job(schedule={"every": 60}), post_job(schedule={"every": 60})
    paused_until_now(job)
    pause_job(later, "", now() + HOUR)

    def went_on() -> bool:
        recovery.step()
        return Job.objects.get(pk=job.pk).status == JobStatus.ACTIVE

    wait_until(went_on, 10, "the job to go on")
    assert Job.objects.get(pk=later.pk).status == JobStatus.PAUSED
    entry = AuditEntry.objects.get(action="job.resumed")
    assert (entry.actor, entry.object_id) == ("scheduler", str(job.pk))
