"""Recovery lets go and takes back while somebody else has the run in hand: it is stepped over, never moved twice."""

from datetime import timedelta

import pytest

from jobs.models import Job
from runs import transitions
from runs.models import LiveRun, NodeState, WorkerNode
from runs.reasons import Reason
from runs.sql import SQL as REQUESTS
from runs.sql import rows
from runs.states import LiveState
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.ledger.interface import Ledger
from scheduler_project.sdk.ledger.postgres import SQL
from scheduler_project.sdk.outcomes import worker_lost
from tests.races.staging import Session, result_after
from tests.runs.ledger.claims import claim_next
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import make_job, make_run, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
LEASE = timedelta(seconds=30)

RELEASED = (Reason.CONCURRENCY, Reason.UNKNOWN_TARGET, Reason.PAUSED, Reason.NOT_EXPORTED)


def release(session: Session, reason: str, job: Job) -> int:
    return transitions.release_blocked(session, reason, [job.pk], now(), 9)


@pytest.mark.parametrize("reason", RELEASED)
def test_a_release_steps_over_a_run_that_somebody_cancels(
    first: Session, second: Session, reason: str
) -> None:
    job = make_job()
    make_worker(job.pool)
    cancelled, other = (make_run(job, LiveState.BLOCKED, reason=reason) for _ in range(2))
    first.execute("BEGIN")
    assert transitions.cancel_live_runs(first, [cancelled.pk], "not needed").ended == [cancelled.pk]
    assert release(second, reason, job) == 1
    first.execute("COMMIT")
    assert release(second, reason, job) == 0
    assert list(LiveRun.objects.values_list("pk", "state")) == [(other.pk, "ready")]


@pytest.mark.parametrize("reason", RELEASED)
def test_a_cancel_waits_for_a_release_and_ends_the_run_all_the_same(
    first: Session, second: Session, reason: str
) -> None:
    job = make_job()
    make_worker(job.pool)
    run = make_run(job, LiveState.BLOCKED, reason=reason)
    first.execute("BEGIN")
    assert release(first, reason, job) == 1
    cancelled = result_after(first, lambda: transitions.cancel_live_runs(second, [run.pk], "not needed"))
    assert cancelled.ended == [run.pk]
    assert not LiveRun.objects.exists()
    run.run.refresh_from_db()
    # From the state it had by then, as the table of moves wants it.
    assert (run.run.state, run.run.ended_from) == ("cancelled", "ready")


def test_a_run_of_a_target_nobody_knows_is_not_taken_back_from_a_claim(
    first: Session, second: Session, ledger: Ledger
) -> None:
    job = make_job()
    node = make_worker(job.pool)
    run = make_run(job, LiveState.QUEUED, queued_at=now() - 2 * LEASE)
    first.execute("BEGIN")
    first.execute("SELECT FROM beatkeeper_live_run WHERE id = %s FOR UPDATE", [run.pk])
    WorkerNode.objects.filter(pk=node.pk).update(known_targets=["other"])
    assert transitions.withdraw_unknown(second, now(), LEASE.total_seconds()) == 0
    first.execute("COMMIT")
    assert claim_next(ledger, job, worker=node) is not None
    assert transitions.withdraw_unknown(second, now(), LEASE.total_seconds()) == 0
    assert LiveRun.objects.get().state == LiveState.RUNNING


def test_a_back_off_that_a_person_ends_and_its_wake_up_are_one_move(first: Session, second: Session) -> None:
    job = make_job()
    run = make_run(job, LiveState.DELAYED, wake_at=now() - timedelta(seconds=1))
    values = {"id": run.pk, "now": now(), "rank": 1}
    first.execute("BEGIN")
    assert transitions.promote_delayed(first, now(), 9) == 1
    assert result_after(first, lambda: second.execute(REQUESTS["end_backoff"], values).rowcount) == 0
    assert LiveRun.objects.get().state == LiveState.READY


def test_a_worker_that_leaves_while_it_is_lost_stays_lost(first: Session, second: Session) -> None:
    node = make_worker(make_job().pool, last_beat_at=now() - 2 * LEASE)
    first.execute("BEGIN")
    lost = rows(first, "expire_workers", {"workers": [node.pk], "now": now()})
    assert len(lost) == 1
    assert result_after(first, lambda: second.execute(SQL["leave"], {"incarnation": node.pk}).rowcount) == 0
    node.refresh_from_db()
    assert node.state == NodeState.LOST


def test_two_losses_of_one_claim_are_one_attempt(first: Session, second: Session) -> None:
    """Recovery of a scheduler that believes it still holds its lock."""
    job = make_job()
    worker = make_worker(job.pool)
    run = make_run(job, LiveState.RUNNING, worker=worker)
    outcome = worker_lost("lost", EPOCH, EPOCH)
    lost = [transitions.EndedAttempt(run.pk, run.claim_seq, worker.pk, "delayed", 5.0)]
    first.execute("BEGIN")
    assert transitions.end_attempts(first, lost, outcome) == {run.pk: "delayed"}
    assert result_after(first, lambda: transitions.end_attempts(second, lost, outcome)) == {}
    assert LiveRun.objects.get().losses == 1
