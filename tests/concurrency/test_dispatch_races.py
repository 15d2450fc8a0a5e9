"""Dispatch, rescue and cancel against claims and reports, each on its own connection."""

from datetime import timedelta
from typing import Any

import pytest

from jobs.models import Job
from runs.dispatch import Dispatched, dispatch_pool
from runs.models import Attempt, LiveRun, NodeState, Run, WorkerNode
from runs.queries import change
from runs.rescue import RescueMemory, lose, rescue_once
from runs.states import LiveState
from runs.transitions import cancel_live_runs, release_gated
from scheduler_project.sdk.ledger import Claim
from scheduler_project.sdk.postgres import SQL, PostgresLedger
from tests.concurrency.staging import Session, meanwhile, wait_until_somebody_waits_for
from tests.factories import make_job, make_lane, make_run, make_worker, now
from tests.runs.claims import SUCCESS, claim_next, ledger, succeeded

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)


def dispatch(session: Session, job: Job) -> Dispatched:
    return dispatch_pool(session, job.pool_id, now())


def claimed(ledger: PostgresLedger, job: Job, worker: WorkerNode | None = None) -> Claim:
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job, worker=worker)
    assert claim is not None
    return claim


def state(job: Job) -> list[str]:
    return sorted(LiveRun.objects.filter(job=job).values_list("state", flat=True))


def test_two_dispatchers_of_one_pool_mark_each_run_once(first: Session, second: Session) -> None:
    job = make_job()
    make_worker(job.pool, slots=20)
    make_lane(job)
    for number in range(5):
        make_run(job, planned_at=now() - number * SECOND)
    first.execute("BEGIN")
    assert dispatch(first, job).queued == 5
    assert dispatch(second, job).queued == 0
    first.execute("COMMIT")
    assert state(job) == ["queued"] * 5


def test_a_report_that_meets_a_dispatch_releases_what_was_blocked_meanwhile(
    ledger: PostgresLedger, first: Session
) -> None:
    """The report would see no blocked run and the dispatch no free place, and nobody would ever release it."""
    job = make_job(max_concurrency=1)
    claim = claimed(ledger, job, make_worker(job.pool, slots=4))
    make_run(job)
    first.execute("BEGIN")
    assert dispatch(first, job).blocked == 1
    with meanwhile(lambda: ledger.report(claim, succeeded(), SUCCESS)) as report:
        wait_until_somebody_waits_for(first)
        first.execute("COMMIT")
        assert report.result(timeout=10) == "succeeded"
    assert state(job) == ["ready"]


def test_a_dispatch_leaves_a_job_alone_whose_gate_a_report_holds(
    ledger: PostgresLedger, first: Session, second: Session
) -> None:
    job = make_job(max_concurrency=1)
    claimed(ledger, job, make_worker(job.pool, slots=4))
    make_run(job)
    first.execute("BEGIN")
    first.execute(SQL["lock_gate"], {"job_id": job.pk})
    assert (dispatch(second, job).queued, dispatch(second, job).blocked) == (0, 0)
    first.execute("COMMIT")
    assert dispatch(second, job).blocked == 1


def test_a_release_that_counted_too_early_never_breaks_the_limit(
    ledger: PostgresLedger, first: Session
) -> None:
    """Releasing is a proposal; the limit is kept by the dispatch, which counts under the gate."""
    job = make_job(max_concurrency=1)
    make_worker(job.pool, slots=9)
    for number in range(3):
        make_run(job, planned_at=now() - number * SECOND)
    dispatch(first, job)
    LiveRun.objects.filter(state="blocked").update(state="ready", reason="")
    dispatch(first, job)
    assert state(job) == ["blocked", "blocked", "queued"]
    assert release_gated(first, [job.pk]) == 0


def test_a_cancel_that_meets_a_claim_waits_and_asks_the_worker(
    ledger: PostgresLedger, first: Session, second: Session
) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    run = make_run(job, LiveState.QUEUED)
    first.execute("BEGIN")
    first.execute(SQL["claim"], _claim_values(job, worker))
    with meanwhile(lambda: cancel_live_runs(second, [run.pk], "enough")) as cancelling:
        wait_until_somebody_waits_for(first)
        first.execute("COMMIT")
        assert cancelling.result(timeout=10).asked == [run.pk]
    run.refresh_from_db()
    assert run.cancel_requested_at is not None


def test_a_claim_that_meets_a_cancel_finds_nothing(ledger: PostgresLedger, first: Session) -> None:
    job = make_job()
    run = make_run(job, LiveState.QUEUED)
    first.execute("BEGIN")
    assert cancel_live_runs(first, [run.pk], "enough").ended == [run.pk]
    assert claim_next(ledger, job) is None
    first.execute("COMMIT")
    assert claim_next(ledger, job) is None
    assert Run.objects.get(pk=run.pk).ended_from == "queued"


def test_a_dispatch_that_meets_a_cancel_marks_nothing(first: Session, second: Session) -> None:
    job = make_job()
    make_worker(job.pool)
    run = make_run(job)
    first.execute("BEGIN")
    cancel_live_runs(first, [run.pk], "enough")
    assert dispatch(second, job).queued == 0
    first.execute("COMMIT")
    assert not LiveRun.objects.exists()


def test_a_rescue_that_meets_a_report_waits_and_takes_nothing(
    ledger: PostgresLedger, first: Session, second: Session
) -> None:
    job = make_job()
    claim = claimed(ledger, job)
    first.execute("BEGIN")
    first.execute(
        "UPDATE beatkeeper_live_run SET state = 'delayed', wake_at = now(), worker = NULL, claim_token = NULL"
    )
    with meanwhile(lambda: lose(second, {claim.run_id: claim.claim_seq}, "lost")) as losing:
        wait_until_somebody_waits_for(first)
        first.execute("COMMIT")
        assert losing.result(timeout=10) == {}
    assert not Attempt.objects.exists()


def test_a_report_after_the_rescue_changes_nothing(ledger: PostgresLedger, first: Session) -> None:
    job = make_job()
    claim = claimed(ledger, job)
    assert lose(first, {claim.run_id: claim.claim_seq}, "lost") == {claim.run_id: "delayed"}
    # What is told is how the attempt ended: as lost, after which the run goes on.
    assert ledger.report(claim, succeeded(), SUCCESS) != "succeeded"
    assert Run.objects.get(pk=claim.run_id).state is None
    assert [attempt.outcome for attempt in Attempt.objects.all()] == ["lost"]


def test_a_report_after_rescue_and_a_second_claim_changes_nothing(
    ledger: PostgresLedger, first: Session
) -> None:
    job = make_job()
    claim = claimed(ledger, job)
    lose(first, {claim.run_id: claim.claim_seq}, "lost")
    LiveRun.objects.update(state="ready", wake_at=None)
    LiveRun.objects.update(state="queued")
    again = claim_next(ledger, job)
    assert again is not None
    assert again.claim_seq == claim.claim_seq + 1
    assert ledger.report(claim, succeeded(), SUCCESS) != "succeeded"
    assert state(job) == ["running"]
    assert ledger.report(again, succeeded(), SUCCESS) == "succeeded"


def test_a_heartbeat_that_lands_in_time_spares_its_node(first: Session, second: Session) -> None:
    """Rescue has read the silent nodes; before it writes, one of them is heard of again."""
    job = make_job()
    silent = now() - 31 * SECOND
    worker = make_worker(job.pool, last_beat_at=silent)
    first.execute("BEGIN")
    first.execute("UPDATE beatkeeper_worker_node SET last_beat_at = clock_timestamp()")
    values = {"nodes": [worker.incarnation], "now": now()}
    with meanwhile(lambda: change(second, "lose_nodes", values)) as losing:
        wait_until_somebody_waits_for(first)
        first.execute("COMMIT")
        assert losing.result(timeout=10) == 0
    worker.refresh_from_db()
    assert worker.state == NodeState.ACTIVE


def test_a_claim_of_a_node_that_is_being_lost_is_found_by_the_next_sweep(
    ledger: PostgresLedger, first: Session
) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    claim = claimed(ledger, job, worker)
    WorkerNode.objects.update(state=NodeState.LOST)
    at = now()
    done = rescue_once(first, RescueMemory(trusted_from=at, last_pass=at), at)
    assert done.lost_attempts == 1
    assert LiveRun.objects.get(pk=claim.run_id).state == LiveState.DELAYED


def _claim_values(job: Job, worker: WorkerNode) -> dict[str, Any]:
    return {
        "worker": worker.incarnation,
        "token": worker.incarnation,
        "pool_id": job.pool_id,
        "tenant_id": job.tenant_id,
        "known": worker.known_targets,
        "lease": 30.0,
        "grace": 60.0,
    }
