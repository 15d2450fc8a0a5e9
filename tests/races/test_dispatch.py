"""Dispatch, recovery and cancel against claims and reports, each on its own connection."""

from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from jobs.models import Effect, Job, Pool, Suspension
from runs.models import Attempt, LiveRun, NodeState, Run, WorkerNode
from runs.models import Queue as QueueRow
from runs.scheduler.dispatch.dispatch import Dispatched, dispatch_pool, keep_queued_since
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.dispatch.ready_queues import BEGINNING
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.scheduler.scan_pace import RECENT_SCANS
from runs.sql import change, rows
from runs.states import LiveState
from runs.transitions import cancel_live_runs, mark_queued, recall, release_blocked, release_gated
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.ledger.clock_skew import RoundTrip
from scheduler_project.sdk.ledger.interface import Beat, Claim, Ledger, given_back
from scheduler_project.sdk.ledger.postgres import SQL, claim_values
from tests.races.staging import Session, result_after, waiting_for
from tests.runs.ledger.claims import SUCCESS, claim_next, claim_request, open_ledger, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import (
    make_job,
    make_queue,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
)

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)


def dispatch(session: Session, job: Job) -> Dispatched:
    return dispatch_pool(session, job.pool_id, now())


def claimed(ledger: Ledger, job: Job, worker: WorkerNode | None = None) -> Claim:
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job, worker=worker)
    assert claim is not None
    return claim


def state(job: Job) -> list[str]:
    return sorted(LiveRun.objects.filter(job=job).values_list("state", flat=True))


def test_two_dispatchers_of_one_pool_mark_each_run_once(first: Session, second: Session) -> None:
    job = make_job()
    make_worker(job.pool, slots=20)
    make_queue(job)
    for number in range(5):
        make_run(job, planned_at=now() - number * SECOND)
    first.execute("BEGIN")
    assert dispatch(first, job).queued == 5
    assert dispatch(second, job).queued == 0
    first.execute("COMMIT")
    assert state(job) == ["queued"] * 5


def test_a_pass_that_waits_too_long_takes_on_less_and_leaves_nothing_half_done(
    first: Session, second: Session
) -> None:
    """Somebody has the queue's row, which is written after the runs are marked."""
    job = make_job(make_tenant(max_running=1))
    make_worker(job.pool)
    make_queue(job)
    make_run(job)
    first.execute("SET lock_timeout = '100ms'")
    second.execute("BEGIN")
    second.execute("SELECT FROM beatkeeper_queue FOR UPDATE")
    memory = PoolMemory()
    before = memory.batch.size
    with memory.batch.one_pass():
        dispatch_pool(first, job.pool_id, now(), memory)
        pytest.fail("the pass did not wait for the queue")
    assert memory.batch.size == before // 2
    assert state(job) == ["ready"]
    second.execute("ROLLBACK")
    assert dispatch_pool(first, job.pool_id, now(), memory).queued == 1


def test_what_is_being_claimed_is_not_recalled(first: Session, second: Session) -> None:
    long = make_job()
    worker = make_worker(long.pool, slots=2)
    for _ in range(2):
        make_run(long, LiveState.RUNNING, worker=worker)
    claimed, left = (make_run(long, LiveState.QUEUED, rank=rank) for rank in range(2))
    make_run(make_job(pool=long.pool))
    first.execute("BEGIN")
    first.execute(SQL["claim"], _claim_values(long, worker))
    dispatch(second, long)
    first.execute("COMMIT")
    assert LiveRun.objects.get(pk=claimed.pk).state == LiveState.RUNNING
    assert LiveRun.objects.get(pk=left.pk).state == LiveState.READY


def test_what_was_recalled_is_not_claimed(first: Session, ledger: Ledger) -> None:
    long = make_job()
    make_run(long, LiveState.QUEUED)
    first.execute("BEGIN")
    assert recall(first, long.pool_id, {long.tenant_id: 10}, now(), 10, EPOCH) == [
        (long.tenant_id, 1, 0, ANY)
    ]
    assert claim_next(ledger, long) is None
    first.execute("COMMIT")
    assert claim_next(ledger, long) is None
    assert state(long) == ["ready"]


def test_what_comes_back_while_a_dispatch_counts_is_taken_back_by_the_next(
    first: Session, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue had neither a ready run nor an occupied slot, so this pass has not read it."""
    ours = make_job(make_tenant(daily_quota=5))
    make_run(ours)
    theirs = make_job(make_tenant(daily_quota=5), ours.pool)
    make_run(theirs)
    make_worker(ours.pool, slots=9)
    worker = make_worker(ours.pool)
    assert dispatch(first, theirs).queued == 2
    claim = claim_next(ledger, theirs, worker=worker)
    assert claim is not None
    make_run(ours)

    def read(session: Session, name: str, *values: Any) -> Any:
        if name == "occupied":
            ledger.report([given_back(claim)])
        return rows(session, name, *values)

    with monkeypatch.context() as patched:
        patched.setattr("runs.scheduler.dispatch.load.rows", read)
        assert dispatch(first, ours).queued == 1
    assert state(theirs) == ["ready"]
    assert dispatch(first, theirs).queued == 1
    assert QueueRow.objects.get(tenant=theirs.tenant).day_count == 1


def test_a_claim_that_commits_while_a_limit_is_counted_is_counted(
    first: Session, second: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither as queued nor as running, it would leave room for one run too many."""
    job = make_job(make_tenant(max_running=2))
    worker = make_worker(job.pool, slots=9)
    make_run(job, LiveState.QUEUED, rank=0)
    for _ in range(3):
        make_run(job)
    first.execute("BEGIN")
    first.execute(SQL["claim"], _claim_values(job, worker))
    counts: list[str] = []

    def read(session: Session, name: str, *values: Any) -> Any:
        found = rows(session, name, *values)
        if name in ("occupied", "running_of_limited"):
            counts.append(name)
            if len(counts) == 1:
                first.execute("COMMIT")
        return found

    memory = PoolMemory()
    with monkeypatch.context() as patched:
        patched.setattr("runs.scheduler.dispatch.load.rows", read)
        dispatch_pool(second, job.pool_id, now(), memory)
    assert len(counts) == 2
    assert state(job) == ["ready", "ready", "ready", "running"], "it is in both, for this pass"
    dispatch_pool(second, job.pool_id, now(), memory)
    assert state(job) == ["queued", "ready", "ready", "running"]


def test_a_claim_that_commits_after_the_count_takes_its_slot(
    first: Session, second: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is too large to be counted again: what was queued then and is not now has begun."""
    monkeypatch.setattr("runs.scheduler.dispatch.counts.COUNTED_EACH_PASS", 0)
    job = make_job()
    worker = make_worker(job.pool, slots=3)
    make_run(job, LiveState.RUNNING, worker=worker)
    make_run(job, LiveState.QUEUED, rank=0)
    for _ in range(4):
        make_run(job)
    memory = PoolMemory()
    first.execute("BEGIN")
    first.execute(SQL["claim"], _claim_values(job, worker))
    assert dispatch_pool(second, job.pool_id, now(), memory).queued == 1
    memory.counts.pace.recent.extend([60.0] * RECENT_SCANS)
    first.execute("COMMIT")
    assert dispatch_pool(second, job.pool_id, now(), memory).queued == 0
    assert memory.counts.load(job.tenant_id).runs == 2
    assert state(job).count("running") == 2


def test_what_a_dispatch_is_about_to_mark_is_left_alone_by_others(first: Session, second: Session) -> None:
    """Its rows are locked as they are read: where they lie is where they are marked."""
    job = make_job()
    run = make_run(job)
    first.execute("BEGIN")
    rank, beginning = BEGINNING
    queue = {"pool": job.pool_id, "tenants": [job.tenant_id], "ranks": [rank], "ids": [beginning]}
    wanted = {**queue, "counts": [5], "need_jobs": False}
    ((ctid, *_),) = rows(first, "next_ready", wanted)
    assert rows(second, "next_ready", wanted) == []
    with waiting_for(first, lambda: cancel_live_runs(second, [run.pk], "enough")) as cancelling:
        assert mark_queued(first, [ctid], EPOCH) == 1
        first.execute("COMMIT")
        assert cancelling.result(timeout=60).ended == [run.pk]
    assert Run.objects.get(pk=run.pk).ended_from == "queued"


def test_a_report_that_meets_a_dispatch_releases_what_was_blocked_meanwhile(
    ledger: Ledger, first: Session
) -> None:
    """The report would see no blocked run and the dispatch no room, and nobody would ever release it."""
    job = make_job(max_concurrency=1)
    claim = claimed(ledger, job, make_worker(job.pool, slots=4))
    make_run(job)
    first.execute("BEGIN")
    assert dispatch(first, job).blocked == 1
    assert result_after(first, lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "succeeded"
    assert state(job) == ["ready"]


def test_a_dispatch_leaves_a_job_alone_whose_gate_a_report_holds(
    ledger: Ledger, first: Session, second: Session
) -> None:
    job = make_job(max_concurrency=1)
    claimed(ledger, job, make_worker(job.pool, slots=4))
    make_run(job)
    first.execute("BEGIN")
    first.execute(SQL["lock_gate"], {"job_id": job.pk})
    assert (dispatch(second, job).queued, dispatch(second, job).blocked) == (0, 0)
    first.execute("COMMIT")
    assert dispatch(second, job).blocked == 1


def test_a_release_that_counted_too_early_never_breaks_the_limit(first: Session) -> None:
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


def test_a_cancel_that_meets_a_claim_waits_and_asks_the_worker(first: Session, second: Session) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    run = make_run(job, LiveState.QUEUED)
    first.execute("BEGIN")
    first.execute(SQL["claim"], _claim_values(job, worker))
    assert result_after(first, lambda: cancel_live_runs(second, [run.pk], "enough")).requested == [run.pk]
    run.refresh_from_db()
    assert run.cancel_requested_at is not None


def test_a_claim_that_meets_a_cancel_finds_nothing(ledger: Ledger, first: Session) -> None:
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


def test_a_recovery_that_meets_a_report_waits_and_takes_nothing(
    ledger: Ledger, first: Session, second: Session
) -> None:
    job = make_job()
    claim = claimed(ledger, job)
    first.execute("BEGIN")
    first.execute(
        "UPDATE beatkeeper_live_run SET state = 'delayed', wake_at = now(), worker = NULL, claim_token = NULL"
    )
    assert result_after(first, lambda: fail_claims(second, {claim.run_id: claim.claim_seq}, "lost")) == {}
    assert not Attempt.objects.exists()


def test_a_report_after_recovery_changes_nothing(ledger: Ledger, first: Session) -> None:
    job = make_job()
    claim = claimed(ledger, job)
    assert fail_claims(first, {claim.run_id: claim.claim_seq}, "lost") == {claim.run_id: "delayed"}
    # What is told is how the attempt ended: as lost, after which the run goes on.
    assert tell(ledger, claim, succeeded(), SUCCESS) != "succeeded"
    assert Run.objects.get(pk=claim.run_id).state is None
    assert [attempt.outcome for attempt in Attempt.objects.all()] == ["lost"]


def test_a_report_after_recovery_and_a_second_claim_changes_nothing(ledger: Ledger, first: Session) -> None:
    job = make_job()
    claim = claimed(ledger, job)
    fail_claims(first, {claim.run_id: claim.claim_seq}, "lost")
    LiveRun.objects.update(state="ready", wake_at=None)
    LiveRun.objects.update(state="queued", queued_at=now())
    again = claim_next(ledger, job)
    assert again is not None
    assert again.claim_seq == claim.claim_seq + 1
    assert tell(ledger, claim, succeeded(), SUCCESS) != "succeeded"
    assert state(job) == ["running"]
    assert tell(ledger, again, succeeded(), SUCCESS) == "succeeded"


def test_a_heartbeat_that_lands_in_time_spares_its_node(first: Session, second: Session) -> None:
    """Recovery has read the silent nodes; before it writes, one of them is heard of again."""
    job = make_job()
    silent = now() - 31 * SECOND
    worker = make_worker(job.pool, last_beat_at=silent)
    values = {"workers": [worker.incarnation], "now": now()}
    first.execute("BEGIN")
    first.execute("UPDATE beatkeeper_worker_node SET last_beat_at = clock_timestamp()")
    assert change(second, "expire_workers", values) == 0
    first.execute("COMMIT")
    assert change(second, "expire_workers", values) == 0
    worker.refresh_from_db()
    assert worker.state == NodeState.ACTIVE


def test_a_worker_cut_off_while_it_beats_keeps_no_other_from_being_lost(
    first: Session, second: Session
) -> None:
    job = make_job()
    silent = now() - 31 * SECOND
    beating, other = (make_worker(job.pool, last_beat_at=silent) for _ in range(2))
    run = make_run(job, LiveState.RUNNING, worker=other)
    first.execute("BEGIN")
    first.execute("SELECT FROM beatkeeper_worker_node WHERE incarnation = %s FOR UPDATE", [beating.pk])
    at = now()
    done = recover_once(second, RecoveryMemory(trusted_from=at, last_pass=at), at)
    assert (done.lost_workers, done.lost_attempts) == (1, 1)
    assert LiveRun.objects.get(pk=run.pk).state == LiveState.DELAYED
    first.execute("ROLLBACK")
    assert recover_once(second, RecoveryMemory(trusted_from=at, last_pass=at), at).lost_workers == 1


def test_a_heartbeat_that_stands_still_half_way_has_let_go_of_its_row(
    first: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is stopped, or cut off, between two statements: others must be able to say that it is lost."""
    worker = make_worker(make_job().pool)
    free: list[bool] = []

    def stands_still(*_arguments: Any) -> float:
        taken = "SELECT FROM beatkeeper_worker_node FOR UPDATE SKIP LOCKED"
        free.append(first.execute(taken).rowcount == 1)
        return 0.0

    monkeypatch.setattr(RoundTrip, "skew_ms", stands_still)
    ledger = open_ledger()
    assert ledger.heartbeat(Beat(worker.incarnation, 1, 0, 1, 0, 0, [], False)).known
    assert free == [True]
    ledger.close()


def test_a_claim_of_a_node_that_is_being_lost_is_found_by_the_next_sweep(
    ledger: Ledger, first: Session
) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    claim = claimed(ledger, job, worker)
    WorkerNode.objects.update(state=NodeState.LOST)
    at = now()
    done = recover_once(first, RecoveryMemory(trusted_from=at, last_pass=at), at)
    assert done.lost_attempts == 1
    assert LiveRun.objects.get(pk=claim.run_id).state == LiveState.DELAYED


def test_a_pause_between_mark_and_claim_hands_the_run_back_to_dispatch(
    ledger: Ledger, first: Session
) -> None:
    job = make_job()
    make_worker(job.pool)
    make_run(job)
    assert dispatch(first, job).queued == 1
    suspension = make_suspension(pool=job.pool, effect=Effect.HOLD)
    assert claim_next(ledger, job) is None
    assert state(job) == ["ready"]
    assert dispatch(first, job).queued == 0
    Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
    assert dispatch(first, job).queued == 1
    assert claim_next(ledger, job) is not None


def test_a_pause_lifted_between_mark_and_claim_costs_nothing(ledger: Ledger, first: Session) -> None:
    job = make_job()
    make_worker(job.pool)
    make_run(job)
    assert dispatch(first, job).queued == 1
    suspension = make_suspension(pool=job.pool, effect=Effect.HOLD)
    Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
    assert claim_next(ledger, job) is not None


def test_a_pause_that_is_not_committed_suspensions_no_claim_and_makes_none_wait(
    ledger: Ledger, first: Session
) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    first.execute("BEGIN")
    first.execute(
        "INSERT INTO beatkeeper_suspension"
        " (kind, effect, tag_name, tag_value, reason, begins_at, lifted_by, created_by)"
        " VALUES ('pause', 'hold', '', '', '', now(), '', '')"
    )
    assert claim_next(ledger, job) is not None
    first.execute("ROLLBACK")


def test_what_a_dispatch_blocks_for_a_pause_lifted_meanwhile_is_found_by_the_next_sweep(
    first: Session, second: Session
) -> None:
    """The dispatch has read the pause and not yet committed; the sweep after the lift sees nothing to release."""
    job = make_job(tags={"team": "pay"})
    make_worker(job.pool)
    make_run(job)
    suspension = make_suspension(tag_name="team")
    first.execute("BEGIN")
    assert dispatch(first, job).blocked == 1
    Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
    assert release_blocked(second, "paused", [job.pk], now(), 9) == 0
    first.execute("COMMIT")
    assert release_blocked(second, "paused", [job.pk], now(), 9) == 1
    assert dispatch(first, job).queued == 1


def _claim_values(job: Job, worker: WorkerNode) -> dict[str, Any]:
    return claim_values(claim_request(job, worker=worker, known=worker.known_targets))


def test_a_pass_does_not_wait_for_whoever_edits_the_pool(first: Session, second: Session) -> None:
    """What claims may pass over stays as it was then."""
    job = make_job()
    make_worker(job.pool)
    run = make_run(job)
    before = now() - timedelta(hours=1)
    Pool.objects.update(queued_since=before)
    first.execute("BEGIN")
    first.execute("SELECT FROM beatkeeper_pool FOR NO KEY UPDATE")
    second.execute("SET lock_timeout = '2s'")
    memory = PoolMemory()
    assert dispatch_pool(second, job.pool_id, now(), memory).queued == 1
    keep_queued_since(second, job.pool_id, memory)
    assert Pool.objects.get(pk=job.pool_id).queued_since == before
    first.execute("ROLLBACK")
    dispatch_pool(second, job.pool_id, now(), memory)
    keep_queued_since(second, job.pool_id, memory)
    run.refresh_from_db()
    assert Pool.objects.get(pk=job.pool_id).queued_since == run.queued_at


def test_a_claim_pace_for_nothing_that_was_queued_before_dispatch_says(ledger: Ledger) -> None:
    """Such a run cannot be, as long as every mark keeps to the rule: this shows that claims rely on it."""
    job, old = make_job(), now() - timedelta(seconds=1)
    worker = make_worker(job.pool)
    run = make_run(job, LiveState.QUEUED, queued_at=old)
    Pool.objects.update(queued_since=old + timedelta(microseconds=1))
    assert claim_next(ledger, job, worker=worker) is None
    Pool.objects.update(queued_since=old)
    claim = claim_next(ledger, job, worker=worker)
    assert claim is not None and claim.run_id == run.pk


def test_a_claim_that_is_rolled_back_is_claimed_again_although_dispatch_moved_on(
    ledger: Ledger, first: Session, second: Session
) -> None:
    """While the claim is open its run counts as queued, so the instant does not pass it by."""
    job = make_job()
    worker = make_worker(job.pool, slots=9)
    old = make_run(job, LiveState.QUEUED, queued_at=now() - timedelta(seconds=5))
    first.execute("BEGIN")
    first.execute(SQL["claim"], _claim_values(job, worker))
    make_run(job)
    memory = PoolMemory()
    for end in ("ROLLBACK", "SELECT"):
        dispatch_pool(second, job.pool_id, now(), memory)
        keep_queued_since(second, job.pool_id, memory)
        first.execute(end)
    claim = claim_next(ledger, job, worker=worker)
    assert claim is not None and claim.run_id == old.pk
