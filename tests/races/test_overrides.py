"""Changes of jobs and runs against the trigger, the claim, and each other (promises 1 to 4)."""

from datetime import timedelta

import pytest

from auditlog.models import AuditEntry
from jobs.errors import DuplicateName, JobNotRunnable, RunIsFinal
from jobs.models import JOB_SLICES, IdempotentRequest, Job, JobClock, JobStatus, JobVersion
from jobs.services.definition import create_job, edit_job
from jobs.services.status import cancel_job, pause_job
from runs.models import LiveRun, Run
from runs.scheduler.trigger.trigger import trigger_due
from runs.services.runs import cancel_run, retry_run, run_now
from runs.sql import fetch
from runs.states import LiveState
from scheduler_project.sdk.ids import run_id
from scheduler_project.sdk.ledger.interface import Ledger
from tests.races.staging import held_open, result_after, second_connection, waiting_for
from tests.runs.ledger.claims import SUCCESS, claim_next, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.api_client import Caller
from tests.support.factories import job_spec, make_due, make_run, make_tenant, post_job

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
ALL_SLICES = range(JOB_SLICES)


def clock(job: Job) -> JobClock:
    return JobClock.objects.get(job=job)


def test_an_edit_that_meets_a_trigger_comes_wholly_after_it() -> None:
    job = post_job(schedule={"every": 60})
    planned = make_due(job)
    with second_connection() as scheduler:
        with scheduler.transaction():
            assert trigger_due(scheduler, ALL_SLICES).runs == 1
            edited = result_after(scheduler, lambda: edit_job(job, {"schedule": {"every": 3600}}))
    run = Run.objects.get(job=job)
    assert (run.pk, run.version) == (run_id(job.pk, planned), 1)
    assert clock(job).next_run_at == edited.spec.anchor_at + timedelta(hours=1)


def test_a_trigger_that_meets_an_edit_leaves_the_job_to_it() -> None:
    job, other = post_job(schedule={"every": 60}), post_job(schedule={"every": 60})
    planned = make_due(job)
    make_due(other)
    with second_connection() as scheduler:
        with held_open():
            edit_job(job, {"schedule": {"every": 3600}})
            with scheduler.transaction():
                assert trigger_due(scheduler, ALL_SLICES).runs == 1
        assert list(Run.objects.filter(job=job).values_list("id", "version")) == [
            (run_id(job.pk, planned), 1)
        ]
        with scheduler.transaction():
            assert trigger_due(scheduler, ALL_SLICES).runs == 0
    assert Run.objects.filter(job=other).count() == 1


def test_a_pause_that_meets_a_trigger_keeps_its_run_and_suspensions_the_clock() -> None:
    job = post_job(schedule={"every": 60})
    make_due(job)
    with second_connection() as scheduler, scheduler.transaction():
        trigger_due(scheduler, ALL_SLICES)
        result_after(scheduler, lambda: pause_job(job))
    assert clock(job).next_run_at is None and Run.objects.filter(job=job).count() == 1


def test_two_edits_at_once_both_count() -> None:
    job = post_job(schedule={"every": 60})
    with held_open() as first:
        edit_job(job, {"timeout": 10})
        result_after(first, lambda: edit_job(job, {"retry": {"max_attempts": 9}}))
    job.refresh_from_db()
    assert job.version == 3 and JobVersion.objects.filter(job=job).count() == 3
    assert (job.spec.timeout_ms, job.spec.retry["max_attempts"]) == (10_000, 9)


def test_of_two_creations_with_one_name_the_second_is_reported() -> None:
    tenant = make_tenant()
    post_job(tenant)
    with held_open() as first:
        create_job(tenant, job_spec(name="settle"))
        with pytest.raises(DuplicateName):
            result_after(first, lambda: create_job(tenant, job_spec(name="settle")))
    assert Job.objects.filter(name="settle").count() == 1
    assert JobVersion.objects.count() == JobClock.objects.count() == 2
    assert AuditEntry.objects.filter(action="job.created").count() == 2


def test_of_two_creations_the_second_stands_when_the_first_fails() -> None:
    tenant = make_tenant()
    post_job(tenant)
    with held_open() as first:
        create_job(tenant, job_spec(name="settle"))
        made = result_after(first, lambda: create_job(tenant, job_spec(name="settle")), "ROLLBACK")
    assert Job.objects.get(name="settle").pk == made.pk


def test_a_cancel_that_meets_a_claim_asks_the_worker_to_stop() -> None:
    run = make_run(post_job(), LiveState.QUEUED)
    with second_connection() as worker:
        worker.execute(
            "UPDATE beatkeeper_live_run SET state = 'running', claim_seq = 1, attempt = 1, worker = %(id)s,"
            " claim_token = %(id)s, claimed_at = now() WHERE id = %(id)s",
            {"id": run.pk},
        )
        asked = result_after(worker, lambda: cancel_run(Run.objects.get(pk=run.pk), "suspension"))
        assert asked.state is None
    live = LiveRun.objects.get(pk=run.pk)
    assert (live.state, live.cancel_reason) == ("running", "cancelled: suspension")
    assert AuditEntry.objects.get(object_id=str(run.pk)).action == "run.cancel_requested"


def test_a_claim_that_meets_a_cancel_finds_nothing(ledger: Ledger) -> None:
    job = post_job()
    # From now on there is a key for it.
    assert claim_next(ledger, job) is None
    run = Run.objects.get(pk=make_run(job, LiveState.QUEUED).pk)
    with held_open():
        cancel_run(run)
        assert claim_next(ledger, job) is None
    assert claim_next(ledger, job) is None
    assert Run.objects.get(pk=run.pk).state == "cancelled" and not LiveRun.objects.exists()


def test_a_cancel_that_meets_the_report_of_a_success_comes_too_late(ledger: Ledger) -> None:
    job = post_job()
    run = Run.objects.get(pk=make_run(job, LiveState.QUEUED).pk)
    claim = claim_next(ledger, job)
    assert claim is not None
    with second_connection() as reporter:
        reporter.execute("SELECT id FROM beatkeeper_live_run WHERE id = %s FOR UPDATE", [run.pk])
        with waiting_for(reporter, lambda: cancel_run(run)) as cancel:
            reporter.execute("DELETE FROM beatkeeper_live_run WHERE id = %s", [run.pk])
            reporter.execute(
                "UPDATE beatkeeper_run SET state = 'succeeded', ended_from = 'running', finished_at = now()"
                " WHERE id = %s",
                [run.pk],
            )
            reporter.commit()
            with pytest.raises(RunIsFinal):
                cancel.result(timeout=60)
    assert tell(ledger, claim, succeeded(), SUCCESS) is None
    assert Run.objects.get(pk=run.pk).state == "succeeded"


def test_a_request_repeated_while_the_first_is_done_gets_the_same_run() -> None:
    caller = Caller(make_tenant())
    job = post_job(caller.tenant)
    caller.get("jobs")
    with held_open() as first:
        answer = caller.post(f"jobs/{job.pk}/run", {"input": {"args": [1]}}, Idempotency_Key="one")
        repeated = result_after(
            first, lambda: caller.post(f"jobs/{job.pk}/run", {"input": {"args": [1]}}, Idempotency_Key="one")
        )
    assert answer.status_code == repeated.status_code == 201
    assert answer.json() == repeated.json() and repeated["Idempotency-Replayed"] == "true"
    assert Run.objects.filter(job=job).count() == LiveRun.objects.filter(job=job).count() == 1


def test_a_repeated_request_is_done_when_the_first_fails() -> None:
    caller = Caller(make_tenant())
    job = post_job(caller.tenant)
    caller.get("jobs")
    with held_open() as first:
        caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="one")
        repeated = result_after(
            first, lambda: caller.post(f"jobs/{job.pk}/run", {}, Idempotency_Key="one"), "ROLLBACK"
        )
    assert repeated.status_code == 201 and "Idempotency-Replayed" not in repeated
    assert str(Run.objects.get(job=job).pk) == repeated.json()["id"]
    assert IdempotentRequest.objects.count() == 1


def test_a_job_cancelled_while_a_run_is_asked_for_ends_that_run_too() -> None:
    job = post_job()
    with held_open() as asking:
        run = run_now(job)
        result_after(asking, lambda: cancel_job(job))
    assert Run.objects.get(pk=run.pk).state == "cancelled" and not LiveRun.objects.exists()


def test_a_run_asked_for_while_the_job_is_cancelled_is_refused() -> None:
    job = post_job()
    with held_open() as cancelling:
        cancel_job(job)
        with pytest.raises(JobNotRunnable):
            result_after(cancelling, lambda: run_now(job))
    assert Job.objects.get(pk=job.pk).status == JobStatus.CANCELLED and not Run.objects.exists()


def test_a_retry_that_meets_the_wake_up_of_the_run_is_refused_and_not_doubled() -> None:
    run = Run.objects.get(pk=make_run(post_job(), LiveState.DELAYED).pk)
    with second_connection() as recovery:
        recovery.execute(
            "UPDATE beatkeeper_live_run SET state = 'ready', wake_at = NULL WHERE id = %s", [run.pk]
        )
        with pytest.raises(Exception, match="the run is ready"):
            result_after(recovery, lambda: retry_run(run))
    assert Run.objects.count() == LiveRun.objects.count() == 1


def test_an_edit_that_finds_its_job_in_a_retrys_hands_has_not_taken_the_gate() -> None:
    """The retry is about to ask for it: each would wait for the other."""
    job = post_job(schedule={"every": 60}, overlap="buffer_one")
    run = make_run(job, LiveState.DELAYED)
    make_due(job)
    with held_open() as retrying:
        assert fetch("job_for_run", job_id=job.pk)
        with waiting_for(retrying, lambda: edit_job(job, {"priority": 900})) as edit:
            assert fetch("lock_live_run", id=run.pk)
            retrying.execute("COMMIT")
            assert edit.result(timeout=60).priority == 900
