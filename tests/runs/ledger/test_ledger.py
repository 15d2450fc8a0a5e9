"""Promises 4 and 7 from the worker's side: what claim, report, give-back and heartbeat do to the tables."""

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from jobs.models import Declaration, Effect, Job, JobStatus, Pool
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.scheduler.trigger.suspensions import read_suspensions
from runs.states import FinalState, LiveState, Trigger
from runs.transitions import release_blocked
from scheduler_project.sdk.errors import LedgerRefused, LedgerUnavailable
from scheduler_project.sdk.ledger import postgres
from scheduler_project.sdk.ledger.interface import (
    LOOKS_PER_SECOND,
    MAX_QUIET,
    Beat,
    Claim,
    Ledger,
    WorkerInfo,
    WorkQueue,
    given_back,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import (
    CANCELLED,
    TRANSIENT,
    LogPointer,
    Outcome,
    stated_failure,
    stopped_outcome,
)
from scheduler_project.sdk.retries import Verdict
from tests.runs.ledger.claims import DEAD, claim_next, failed, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.runs.ledger.claims import ledger as postgres_ledger
from tests.support.factories import (
    TASK,
    make_job,
    make_pool,
    make_queue,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
)

__all__ = ["ledger", "postgres_ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_claim_takes_the_lowest_rank_and_counts_the_attempt(ledger: Ledger) -> None:
    job = make_job()
    later = make_run(job, LiveState.QUEUED, rank=2)
    first = make_run(job, LiveState.QUEUED, rank=1)
    claim = claim_next(ledger, job)
    assert claim is not None
    assert (claim.run_id, claim.claim_seq, claim.attempt) == (first.run_id, 1, 1)
    assert claim.target["task"] == TASK
    assert claim.timeout == 60
    assert LiveRun.objects.get(run=later.run_id).state == LiveState.QUEUED


def test_claim_leaves_targets_the_worker_does_not_know(ledger: Ledger) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    assert claim_next(ledger, job, known=["another.task"]) is None


@pytest.mark.parametrize("change", [{"shared": False}, {"exported_tasks": []}], ids=["pool", "export"])
def test_claim_gives_back_what_was_withdrawn_meanwhile(ledger: Ledger, change: dict[str, object]) -> None:
    job = make_job()
    run = make_run(job, LiveState.QUEUED)
    Pool.objects.update(**change)
    assert claim_next(ledger, job) is None
    run.refresh_from_db()
    assert (run.state, run.attempt, run.claim_seq) == (LiveState.READY, 0, 0)


def test_a_worker_claims_for_as_long_as_the_lease_it_registered(ledger: Ledger) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    info = WorkerInfo(uuid4(), "w", job.pool.slug, "host", 1, 1, [TASK], lease=60)
    ledger.register(info)
    worker = WorkerNode.objects.get(pk=info.incarnation)
    assert worker.lease_seconds == 60
    WorkerNode.objects.update(last_beat_at=now() - timedelta(seconds=61))
    assert claim_next(ledger, job, worker=worker) is None
    WorkerNode.objects.update(last_beat_at=now() - timedelta(seconds=31))
    assert claim_next(ledger, job, worker=worker) is not None


def test_claim_takes_only_what_was_handed_over(ledger: Ledger) -> None:
    job = make_job()
    for state in (LiveState.READY, LiveState.DELAYED, LiveState.BLOCKED):
        make_run(job, state)
    assert claim_next(ledger, job) is None


@pytest.mark.parametrize("state", ["lost", "left", "draining"])
def test_claim_is_refused_to_an_incarnation_that_is_not_active(ledger: Ledger, state: str) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    assert claim_next(ledger, job, worker=make_worker(job.pool, state=state)) is None


def test_claim_is_refused_to_an_incarnation_silent_for_a_lease(ledger: Ledger) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    silent = make_worker(job.pool, last_beat_at=now() - timedelta(seconds=31))
    assert claim_next(ledger, job, worker=silent) is None


def test_claim_is_refused_to_a_worker_of_another_pool(ledger: Ledger) -> None:
    job, other = make_job(), make_job()
    make_run(job, LiveState.QUEUED)
    assert claim_next(ledger, job, worker=make_worker(other.pool)) is None


def test_claim_whose_answer_was_lost_is_answered_again_with_the_same_token(ledger: Ledger) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    make_run(job, LiveState.QUEUED)
    worker, token = make_worker(job.pool), uuid4()
    first = claim_next(ledger, job, worker=worker, token=token)
    again = claim_next(ledger, job, worker=worker, token=token, again=True)
    assert first == again
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 1


def test_claim_asked_again_after_it_never_arrived_takes_a_run(ledger: Ledger) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    assert claim_next(ledger, job, token=uuid4(), again=True) is not None


def test_claim_hands_a_run_of_a_paused_job_back_and_takes_the_next(ledger: Ledger) -> None:
    paused = make_job(status=JobStatus.PAUSED)
    held = make_run(paused, LiveState.QUEUED, rank=1)
    active = make_job(tenant=paused.tenant, pool=paused.pool)
    free = make_run(active, LiveState.QUEUED, rank=2)
    claim = claim_next(ledger, active)
    assert claim is not None and claim.run_id == free.run_id
    assert LiveRun.objects.get(run=held.run_id).state == LiveState.READY


def test_a_manual_run_of_a_paused_job_is_claimed(ledger: Ledger) -> None:
    job = make_job(status=JobStatus.PAUSED)
    make_run(job, LiveState.QUEUED, trigger=Trigger.MANUAL)
    assert claim_next(ledger, job) is not None


HOUR = timedelta(hours=1)
SUSPENSIONS: list[dict[str, Any]] = [
    {},
    {"pool": True},
    {"pool": False},
    {"tenant": True},
    {"tenant": False},
    {"pool": True, "tenant": False},
    {"job": True, "tenant": True},
    {"job": False, "tenant": True},
    {"tag_name": "team"},
    {"tag_name": "team", "tag_value": "pay"},
    {"tag_name": "team", "tag_value": "web"},
    {"tag_name": "city"},
    {"tag_name": "empty", "tag_value": ""},
    {"effect": Effect.HOLD},
    {"effect": Effect.SKIP},
    {"effect": Effect.RUN_AFTER},
    {"ends_at": -HOUR / 2},
    {"ends_at": HOUR},
    {"ends_at": HOUR, "lifted_at": -HOUR / 2},
    {"begins_at": HOUR},
    {"settled_at": -HOUR / 2, "ends_at": -HOUR / 2},
]


@pytest.mark.parametrize("fields", SUSPENSIONS, ids=str)
def test_claim_and_release_ask_for_stops_as_dispatch_does(ledger: Ledger, fields: dict[str, Any]) -> None:
    """One rule in three places: SuspensionSet.holds, the claim statement, and the release of what was blocked."""
    job = make_job(tags={"team": "pay", "empty": ""})
    meant = {"pool": job.pool, "tenant": job.tenant, "job": job}
    others = {"pool": make_pool, "tenant": make_tenant, "job": make_job}
    make_suspension(**{name: _of_a_suspension(name, value, meant, others) for name, value in fields.items()})
    claimed, blocked = make_run(job, LiveState.QUEUED), make_run(job, LiveState.BLOCKED, reason="paused")
    at = now()
    connection.ensure_connection()
    stop = read_suspensions(connection.connection, at).holds(job.tenant_id, job.pool_id, job.pk, job.tags, at)
    assert (claim_next(ledger, job) is None) == (stop is not None)
    claimed.refresh_from_db()
    assert claimed.state == (LiveState.READY if stop else LiveState.RUNNING)
    assert release_blocked(connection.connection, "paused", [job.pk], at, 9) == (0 if stop else 1)
    blocked.refresh_from_db()
    assert blocked.state == (LiveState.BLOCKED if stop else LiveState.READY)


def _of_a_suspension(name: str, value: Any, meant: dict[str, Any], others: dict[str, Any]) -> Any:
    if name in meant:
        return meant[name] if value else others[name]()
    return now() + value if isinstance(value, timedelta) else value


def test_report_of_a_success_ends_the_run_and_keeps_what_it_left(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    outcome = Outcome("succeeded", now(), now(), result={"rows": 3}, log=LogPointer("logs/a", 10, 20))
    assert tell(ledger, claim, outcome, Verdict("succeeded")) == "succeeded"
    run = Run.objects.get(id=claim.run_id)
    assert (run.state, run.ended_from, run.attempts, run.result) == ("succeeded", "running", 1, {"rows": 3})
    assert (run.log_object, run.log_offset, run.log_length) == ("logs/a", 10, 20)
    assert not LiveRun.objects.exists()
    attempt = Attempt.objects.get(run=claim.run_id)
    assert (attempt.outcome, attempt.number, attempt.claim_seq) == ("succeeded", 1, 1)


def test_report_of_a_failure_delays_the_run_and_keeps_its_place_by_rank(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    before = LiveRun.objects.get()
    assert tell(ledger, claim, failed(), Verdict("delayed", 30.0)) == "delayed"
    live = LiveRun.objects.get()
    assert (live.state, live.attempt, live.claim_seq, live.worker) == (LiveState.DELAYED, 1, 1, None)
    assert live.wake_at is not None and timedelta(seconds=25) < live.wake_at - now() < timedelta(seconds=35)
    moved_ms = (live.available_at - before.available_at) / timedelta(milliseconds=1)
    assert abs(live.rank - before.rank - moved_ms) < 2
    assert Run.objects.get(id=claim.run_id).state is None
    assert Attempt.objects.get().error_line == "no luck"


def test_a_repeated_report_is_recognised_and_changes_nothing(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    assert tell(ledger, claim, failed(), Verdict("delayed", 30.0)) == "delayed"
    assert tell(ledger, claim, failed(), Verdict("delayed", 30.0)) == "delayed"
    assert Attempt.objects.count() == 1


def test_late_report_after_a_give_back_changes_nothing(ledger: Ledger) -> None:
    """The attempt number is the same again, the fencing token is not."""
    claim = _claimed(ledger)
    assert ledger.report([given_back(claim)]).states[0] == "ready"
    LiveRun.objects.update(state=LiveState.QUEUED, queued_at=now())
    again = claim_next(ledger, Job.objects.get())
    assert again is not None
    assert (again.attempt, again.claim_seq) == (1, 2)
    assert tell(ledger, claim, succeeded(), Verdict("succeeded")) != "succeeded"
    live = LiveRun.objects.get()
    assert (live.state, live.claim_seq) == (LiveState.RUNNING, 2)
    assert tell(ledger, again, succeeded(), Verdict("succeeded")) == "succeeded"


def test_a_report_after_recovery_is_not_taken_for_one_that_was_heard(ledger: Ledger) -> None:
    """Else its log would be removed, and what recovery wrote points to none."""
    claim = _claimed(ledger)
    tell(ledger, claim, failed(), Verdict("delayed", 30.0))
    with_log = Outcome("succeeded", now(), now(), log=LogPointer("logs/a", 0, 10))
    assert tell(ledger, claim, with_log, Verdict("succeeded")) is None


def test_report_of_a_stranger_changes_nothing(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    stranger = Claim(**{**vars(claim), "incarnation": uuid4()})
    assert tell(ledger, stranger, succeeded(), Verdict("succeeded")) is None
    assert LiveRun.objects.get().state == LiveState.RUNNING


def test_failure_of_a_run_that_is_to_be_cancelled_is_a_cancellation(ledger: Ledger) -> None:
    """A cancelled run never comes back through its retry."""
    claim = _claimed(ledger)
    LiveRun.objects.update(cancel_requested_at=now(), cancel_reason="wrong input")
    assert tell(ledger, claim, failed(), Verdict("delayed", 1.0)) == "cancelled"
    run = Run.objects.get(id=claim.run_id)
    assert (run.state, run.reason, run.error_class) == (FinalState.CANCELLED, "wrong input", "cancelled")
    assert not LiveRun.objects.exists()


def test_heartbeat_names_what_is_terminated_among_the_cancels(ledger: Ledger) -> None:
    """So that a worker that does not know of terminating still cancels."""
    job = make_job()
    worker = make_worker(job.pool)
    runs = [make_run(job, LiveState.RUNNING, worker=worker) for _ in range(3)]
    requested = LiveRun.objects.filter(pk__in=[run.pk for run in runs[:2]])
    requested.update(cancel_requested_at=now())
    requested.filter(pk=runs[0].pk).update(terminate=True)
    answer = ledger.heartbeat(_beat(worker, number=1, held=[run.claim_token for run in runs]))
    assert set(answer.cancels) == {runs[0].claim_token, runs[1].claim_token}
    assert answer.terminates == [runs[0].claim_token]


def test_heartbeat_acknowledges_the_cancels_that_were_asked_for(ledger: Ledger) -> None:
    """Once, and of nobody else's runs."""
    job = make_job()
    worker, other = make_worker(job.pool), make_worker(job.pool)
    mine, uncancelled = (make_run(job, LiveState.RUNNING, worker=worker) for _ in range(2))
    theirs = make_run(job, LiveState.RUNNING, worker=other)
    LiveRun.objects.exclude(pk=uncancelled.pk).update(cancel_requested_at=now())
    tokens = [run.claim_token for run in (mine, uncancelled, theirs)]
    ledger.heartbeat(_beat(worker, number=1, held=tokens, stopping=tokens))
    [acknowledged] = LiveRun.objects.exclude(cancel_acknowledged_at=None)
    assert acknowledged.pk == mine.pk
    ledger.heartbeat(_beat(worker, number=2, held=tokens, stopping=tokens))
    again = LiveRun.objects.get(pk=mine.pk)
    assert again.cancel_acknowledged_at == acknowledged.cancel_acknowledged_at


def test_success_of_a_run_that_is_to_be_cancelled_stays_a_success(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    LiveRun.objects.update(cancel_requested_at=now())
    assert tell(ledger, claim, succeeded(), Verdict("succeeded")) == "succeeded"


def test_give_back_of_a_run_that_is_to_be_cancelled_cancels_it(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    LiveRun.objects.update(cancel_requested_at=now())
    assert ledger.report([given_back(claim)]).states[0] == "cancelled"


def test_a_ready_run_of_another_pool_keeps_no_report_from_releasing(ledger: Ledger) -> None:
    job = make_job(max_concurrency=1)
    make_run(job)
    Job.objects.filter(pk=job.pk).update(pool=make_pool())
    job.refresh_from_db()
    make_run(job, LiveState.QUEUED)
    blocked = make_run(job, LiveState.BLOCKED, reason="concurrency")
    claim = claim_next(ledger, job)
    assert claim is not None
    tell(ledger, claim, succeeded(), Verdict("succeeded"))
    assert LiveRun.objects.get(pk=blocked.pk).state == LiveState.READY


def test_report_of_a_gated_run_releases_the_next_blocked_one(ledger: Ledger) -> None:
    job = make_job(max_concurrency=1)
    make_run(job, LiveState.QUEUED)
    waiting = [make_run(job, LiveState.BLOCKED, reason="concurrency", rank=rank) for rank in (5, 6)]
    claim = claim_next(ledger, job)
    assert claim is not None and claim.gated
    tell(ledger, claim, succeeded(), Verdict("succeeded"))
    states = [LiveRun.objects.get(run=live.run_id).state for live in waiting]
    assert states == [LiveState.READY, LiveState.BLOCKED]


@pytest.mark.parametrize("verdict", [Verdict("succeeded"), DEAD], ids=["succeeded", "dead"])
def test_a_reported_run_keeps_when_it_was_queued_and_asked_to_stop(ledger: Ledger, verdict: Verdict) -> None:
    claim = _claimed(ledger)
    at = now()
    LiveRun.objects.filter(run=claim.run_id).update(cancel_requested_at=at, cancel_acknowledged_at=at)
    queued_at = LiveRun.objects.get(run=claim.run_id).queued_at
    tell(ledger, claim, succeeded() if verdict != DEAD else failed(), verdict)
    run = Run.objects.get(id=claim.run_id)
    assert queued_at is not None and run.queued_at == queued_at
    assert (run.cancel_requested_at, run.cancel_acknowledged_at) == (at, at)


def test_the_report_of_a_body_that_was_stopped_acknowledges_the_cancel(ledger: Ledger) -> None:
    """It may stop before the next heartbeat."""
    claim = _claimed(ledger)
    LiveRun.objects.update(cancel_requested_at=now())
    tell(ledger, claim, stopped_outcome(CANCELLED, 60, now(), now()), DEAD)
    assert Run.objects.get(id=claim.run_id).cancel_acknowledged_at is not None


def test_a_body_that_failed_by_itself_acknowledges_no_cancel(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    LiveRun.objects.update(cancel_requested_at=now())
    tell(ledger, claim, failed(), DEAD)
    run = Run.objects.get(id=claim.run_id)
    assert run.state == FinalState.CANCELLED and run.cancel_acknowledged_at is None


def test_an_exit_code_of_zero_is_zero(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    tell(ledger, claim, replace(succeeded(), exit_code=0), Verdict("succeeded"))
    assert Run.objects.get(id=claim.run_id).exit_code == Attempt.objects.get().exit_code == 0


def test_a_dead_run_keeps_its_error(ledger: Ledger) -> None:
    claim = _claimed(ledger)
    outcome = replace(stated_failure(TRANSIENT, "exit", "exit code 3", now(), now()), exit_code=3)
    assert tell(ledger, claim, outcome, DEAD) == "dead"
    run = Run.objects.get(id=claim.run_id)
    assert (run.state, run.exit_code, run.error_line) == (FinalState.DEAD, 3, "exit code 3")
    assert run.finished_at is not None and run.started_at is not None


def test_heartbeat_renews_the_lease_and_names_cancels_and_claims_that_are_gone(
    ledger: Ledger,
) -> None:
    job = make_job()
    worker = make_worker(job.pool, last_beat_at=now() - timedelta(seconds=20))
    cancelled = make_run(job, LiveState.RUNNING, worker=worker, cancel_requested_at=now())
    kept = make_run(job, LiveState.RUNNING, worker=worker)
    gone = uuid4()
    held = [cancelled.claim_token, kept.claim_token, gone]
    answer = ledger.heartbeat(_beat(worker, 1, held=held))
    assert answer.known
    assert answer.cancels == [cancelled.claim_token]
    assert answer.gone == [gone]
    worker.refresh_from_db()
    assert worker.held == held
    assert now() - worker.last_beat_at < timedelta(seconds=10)


def test_heartbeat_moves_the_previous_beat_only_when_the_one_before_was_answered(
    ledger: Ledger,
) -> None:
    worker = make_worker(make_job().pool)
    ledger.heartbeat(_beat(worker, 1))
    worker.refresh_from_db()
    first = worker.last_beat_at
    ledger.heartbeat(_beat(worker, 2, answered=0))
    worker.refresh_from_db()
    assert worker.previous_beat_at < first
    second = worker.last_beat_at
    ledger.heartbeat(_beat(worker, 3, answered=2))
    worker.refresh_from_db()
    assert worker.previous_beat_at == second


def test_heartbeat_announces_the_lease_that_its_worker_counts_on(ledger: Ledger) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    ledger.heartbeat(_beat(worker, 1, lease=50.0, idle=True))
    WorkerNode.objects.update(last_beat_at=now() - timedelta(seconds=49))
    make_run(job, LiveState.QUEUED)
    assert claim_next(ledger, job, worker=worker) is not None
    ledger.heartbeat(_beat(worker, 2, lease=30.0))
    assert WorkerNode.objects.get().lease_seconds == 30
    ledger.heartbeat(_beat(worker, 3))
    assert WorkerNode.objects.get().lease_seconds == 30, "of a worker of an earlier version it stays as it is"


def test_a_heartbeat_that_arrives_late_does_not_bring_back_its_lease(ledger: Ledger) -> None:
    worker = make_worker(make_job().pool)
    ledger.heartbeat(_beat(worker, 2, lease=30.0))
    assert not ledger.heartbeat(_beat(worker, 1, lease=50.0)).known
    assert WorkerNode.objects.get().lease_seconds == 30


def test_idle_workers_that_look_for_the_same_runs_share_the_looks(postgres_ledger: PostgresLedger) -> None:
    pool, tenant, silent = make_pool(), make_tenant(), now() - timedelta(seconds=31)
    worker = make_worker(pool)
    for _ in range(5):
        make_worker(pool)
    assert _looking(postgres_ledger, worker, 1) == 6
    make_worker(make_pool())
    make_worker(pool, tenant=tenant)
    make_worker(pool, known_targets=["another.task"])
    make_worker(pool, last_beat_at=silent)
    make_worker(pool, state="draining")
    make_worker(pool, slots=4, busy=3, foreign_busy=1)
    assert _looking(postgres_ledger, worker, 2) == 6
    make_worker(pool, slots=4, busy=3)
    assert _looking(postgres_ledger, worker, 3) == 7
    assert postgres_ledger.heartbeat(_beat(worker, 4)).quiet == 0


def test_no_idle_worker_is_silent_for_longer_than_the_most(
    postgres_ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOOKS_PER_SECOND", 0.1)
    pool = make_pool()
    workers = [make_worker(pool, known_targets=["x" * 200] * 40) for _ in range(4)]
    assert postgres_ledger.heartbeat(_beat(workers[0], 1, idle=True)).quiet == MAX_QUIET


def _looking(ledger: Ledger, worker: WorkerNode, number: int) -> float:
    quiet = ledger.heartbeat(_beat(worker, number, idle=True)).quiet
    assert quiet is not None
    return round(quiet * LOOKS_PER_SECOND, 6)


def test_an_older_heartbeat_that_arrives_late_is_not_believed(ledger: Ledger) -> None:
    worker = make_worker(make_job().pool)
    token = uuid4()
    ledger.heartbeat(_beat(worker, 5, held=[token]))
    assert not ledger.heartbeat(_beat(worker, 4)).known
    worker.refresh_from_db()
    assert worker.held == [token]


@pytest.mark.parametrize("state", ["lost", "left"])
def test_heartbeat_of_a_lost_incarnation_learns_of_it(ledger: Ledger, state: str) -> None:
    worker = make_worker(make_job().pool, state=state)
    assert not ledger.heartbeat(_beat(worker, 1)).known


def test_heartbeat_names_queues_whose_runs_wait_for_a_claim(ledger: Ledger) -> None:
    job = make_job()
    queue = make_queue(job)
    make_run(job, LiveState.QUEUED, queued_at=now() - timedelta(seconds=5))
    worker = make_worker(job.pool)
    assert [found.id for found in ledger.heartbeat(_beat(worker, 1)).work] == [queue.id]
    assert ledger.heartbeat(_beat(worker, 2, feed_after=60)).work == []
    assert ledger.heartbeat(_beat(worker, 3, busy=4)).work == []


def test_heartbeat_tells_how_far_the_clocks_are_apart_and_keeps_what_it_is_reported(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_worker(make_pool())
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 90)
    answer = ledger.heartbeat(_beat(worker, 1))
    assert answer.skew_ms is not None and 89_000 < answer.skew_ms < 91_000
    assert WorkerNode.objects.get().skew_ms is None
    ledger.heartbeat(_beat(worker, 2, skew_ms=answer.skew_ms))
    ledger.heartbeat(_beat(worker, 3))
    assert WorkerNode.objects.get().skew_ms == answer.skew_ms


def test_heartbeat_does_not_name_work_the_worker_cannot_do(ledger: Ledger) -> None:
    job = make_job()
    make_queue(job)
    make_run(job, LiveState.QUEUED, queued_at=now() - timedelta(seconds=5))
    worker = make_worker(job.pool, known_targets=["another.task"])
    assert ledger.heartbeat(_beat(worker, 1)).work == []


def test_heartbeat_tells_a_tenants_worker_of_its_queue_made_since(postgres_ledger: PostgresLedger) -> None:
    job = make_job()
    worker = make_worker(job.pool, tenant=job.tenant)
    make_queue(make_job(pool=job.pool, tenant=make_tenant()))
    queue = make_queue(job)
    postgres_ledger._of_tenant = job.tenant_id
    told = [
        postgres_ledger.heartbeat(_beat(worker, 1 + after, queues_after=after)).queues
        for after in (0, queue.id)
    ]
    assert told == [[WorkQueue(queue.id, job.pool_id, job.tenant_id, queue.broker_queue)], []]


def test_heartbeat_tells_other_workers_of_their_pools_queue_each_time(
    postgres_ledger: PostgresLedger,
) -> None:
    pool = make_pool(broker_queue="bk.default.all.tenants.v2")
    worker = make_worker(pool)
    make_queue(make_job(pool=pool))
    for number, name in enumerate(("bk.default.all.tenants.v2", "bk.default.all.tenants.q2"), start=1):
        Pool.objects.update(broker_queue=name)
        assert postgres_ledger.heartbeat(_beat(worker, number)).queues == [WorkQueue(0, pool.pk, 0, name)]


def test_register_refuses_an_unknown_pool_by_its_name(postgres_ledger: PostgresLedger) -> None:
    with pytest.raises(LedgerRefused, match="There is no pool 'nowhere'"):
        postgres_ledger.register(_info("nowhere"))


def test_register_refuses_what_it_cannot_keep_in_a_sentence(ledger: Ledger) -> None:
    info = replace(_info(make_pool().slug), known_targets=["a" * 201])
    with pytest.raises(LedgerRefused, match=r"cannot keep the worker 'worker': value too long .*\(200\)"):
        ledger.register(info)


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [("n" * 121, [], "longer than 120 characters"), ("nul", ["\x00"], "cannot keep|no character")],
)
def test_a_declaration_that_cannot_be_kept_costs_no_other(
    ledger: Ledger, name: str, args: list[str], reason: str
) -> None:
    pool, tenant = make_pool(), make_tenant()
    declared: list[dict[str, Any]] = [
        {"name": name, "target": {"args": args}},
        {"name": "good", "schedule": None},
    ]
    with pytest.raises(LedgerRefused, match=reason):
        ledger.declare(pool.slug, tenant.slug, declared)
    assert list(Declaration.objects.values_list("name", flat=True)) == ["good"]


def test_register_makes_the_incarnation_known_and_names_the_queues(ledger: Ledger) -> None:
    job = make_job(pool=make_pool(broker_queue="bk.default.all.tenants.v2"))
    queue = make_queue(job)
    info = _info(job.pool.slug)
    of_pool = WorkQueue(0, job.pool_id, 0, "bk.default.all.tenants.v2")
    of_tenant = WorkQueue(queue.id, job.pool_id, job.tenant_id, queue.broker_queue)
    assert ledger.register(info) == [of_pool if isinstance(ledger, PostgresLedger) else of_tenant]
    assert WorkerNode.objects.get(incarnation=info.incarnation).known_targets == [TASK]


def test_a_worker_that_leaves_holds_nothing(ledger: Ledger) -> None:
    worker = make_worker(make_job().pool, held=[uuid4()])
    ledger.leave(worker.incarnation)
    worker.refresh_from_db()
    assert (worker.state, worker.held) == ("left", [])


def test_a_ledger_without_database_says_that_it_had_no_answer() -> None:
    nowhere = PostgresLedger("postgresql://nobody:secret@127.0.0.1:1/none")
    with pytest.raises(LedgerUnavailable) as caught:
        nowhere.leave(uuid4())
    assert "secret" not in str(caught.value) + repr(nowhere)


def test_the_ledger_opens_a_new_connection_after_its_own_was_cut(postgres_ledger: PostgresLedger) -> None:
    worker = make_worker(make_job().pool)
    postgres_ledger.heartbeat(_beat(worker, 1))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'beatkeeper-worker' AND datname = current_database()"
        )
    with pytest.raises(LedgerUnavailable):
        postgres_ledger.heartbeat(_beat(worker, 2))
    assert postgres_ledger.heartbeat(_beat(worker, 3)).known


def _claimed(ledger: Ledger) -> Claim:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim


def _info(pool: str) -> WorkerInfo:
    return WorkerInfo(uuid4(), "worker", pool, "host", 1, 4, [TASK])


def _beat(worker: WorkerNode, number: int, **fields: object) -> Beat:
    values = {"answered": number - 1, "slots": 4, "busy": 0, "foreign_busy": 0, "held": [], "draining": False}
    return Beat(worker.incarnation, number, **{**values, **fields})  # type: ignore[arg-type]
