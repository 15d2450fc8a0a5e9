"""Claims whose answer nobody got are given back while somebody else moves their runs, each on its own connection."""

from pathlib import Path

import pytest

from jobs.models import Job
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.states import LiveState
from runs.transitions import cancel_live_runs
from scheduler_project.sdk.guard.delivery import Delivery
from scheduler_project.sdk.guard.held_claims import held_claims
from scheduler_project.sdk.ledger.interface import Claim, ClaimRequest, Ledger, given_back
from scheduler_project.sdk.ledger.postgres import SQL, claim_values, report_values
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.spool import unconfirmed_claim
from tests.races.staging import Session, result_after, second_connection
from tests.runs.ledger.claims import claim_request, queued
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import TASK, make_run, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def wanted(job: Job, worker: WorkerNode) -> ClaimRequest:
    queued(job, 3)
    return claim_request(job, 3, worker)


@pytest.fixture
def delivery(ledger: Ledger, wanted: ClaimRequest, tmp_path: Path) -> Delivery:
    """Of a worker whose child died having requested them."""
    config = Config("w", "host", "", "", 1, "", f"file://{tmp_path}/logs", [TASK])
    runtime = Runtime.create(tmp_path / "spool", config)
    runtime.spool.put_unconfirmed(unconfirmed_claim(wanted.incarnation, wanted.token, wanted.limit))
    return Delivery(runtime, ledger)


@pytest.fixture
def claims(ledger: Ledger, wanted: ClaimRequest) -> list[Claim]:
    claims = ledger.claim(wanted)
    assert len(claims) == 3
    return claims


def state_of(claim: Claim) -> tuple[str, int, int]:
    live = LiveRun.objects.get(pk=claim.run_id)
    return live.state, live.attempt, live.losses


UNTRIED = (LiveState.READY, 0, 0)


def test_a_request_that_is_still_under_way_is_waited_for(
    delivery: Delivery, other: Session, wanted: ClaimRequest
) -> None:
    other.execute(SQL["claim"], claim_values(wanted))
    assert not delivery.deliver_all()
    assert held_claims(delivery._runtime).tokens == set(wanted.tokens), (
        "or recovery would count a loss of each"
    )
    other.commit()
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 3
    assert delivery.deliver_all()
    assert LiveRun.objects.filter(state=LiveState.READY, attempt=0, losses=0).count() == 3
    assert not held_claims(delivery._runtime).tokens


def test_what_recovery_takes_meanwhile_stays_as_recovery_decided(
    delivery: Delivery, other: Session, claims: list[Claim]
) -> None:
    lost = claims[1]
    other.execute("SELECT")
    assert fail_claims(other, {lost.run_id: lost.claim_seq}, "lost")
    assert result_after(other, delivery.deliver_all)
    assert [state_of(claim) for claim in claims] == [UNTRIED, (LiveState.DELAYED, 1, 1), UNTRIED]
    assert Attempt.objects.filter(run=lost.run_id).count() == 1


def test_recovery_that_comes_too_late_counts_nothing(other: Session, claims: list[Claim]) -> None:
    other.execute(SQL["end_attempts"], report_values([given_back(claim) for claim in claims]))
    numbers = {claim.run_id: claim.claim_seq for claim in claims}
    with second_connection() as recovering:
        assert result_after(other, lambda: fail_claims(recovering, numbers, "lost")) == {}
        recovering.commit()
    assert [state_of(claim) for claim in claims] == [UNTRIED] * 3


def test_what_is_cancelled_meanwhile_is_cancelled_and_never_began(
    delivery: Delivery, other: Session, claims: list[Claim]
) -> None:
    cancelled = claims[0]
    assert cancel_live_runs(other, [cancelled.run_id], "enough").requested == [cancelled.run_id]
    assert result_after(other, delivery.deliver_all)
    assert Run.objects.get(pk=cancelled.run_id).state == "cancelled"
    assert [state_of(claim) for claim in claims[1:]] == [UNTRIED] * 2


def test_a_claim_that_another_worker_has_made_since_is_not_touched(
    ledger: Ledger, delivery: Delivery, claims: list[Claim], job: Job
) -> None:
    """Between the look for what was made and its give-back, recovery and another claim go by."""
    taken = claims[0]
    original = ledger.report
    again: list[Claim] = []

    def overtaken(*arguments: object) -> object:
        if not again:
            with second_connection() as recovering:
                fail_claims(recovering, {taken.run_id: taken.claim_seq}, "lost")
            LiveRun.objects.filter(pk=taken.run_id).update(state=LiveState.READY, wake_at=None)
            LiveRun.objects.filter(pk=taken.run_id).update(state=LiveState.QUEUED, queued_at=now())
            elsewhere = claim_request(job, worker=make_worker(job.pool))
            again.extend(ledger.claim(elsewhere))
        return original(*arguments)  # type: ignore[arg-type]

    ledger.report = overtaken  # type: ignore[assignment, method-assign]
    assert delivery.deliver_all()
    assert [claim.run_id for claim in again] == [taken.run_id]
    live = LiveRun.objects.get(pk=taken.run_id)
    assert (live.state, live.claim_token, live.claim_seq) == (LiveState.RUNNING, again[0].token, 2)
    assert [state_of(claim) for claim in claims[1:]] == [UNTRIED] * 2


def test_claims_that_were_heard_are_not_found_by_another_token(
    ledger: Ledger, delivery: Delivery, claims: list[Claim], job: Job, worker: WorkerNode
) -> None:
    run = make_run(job, LiveState.QUEUED)
    [beside] = ledger.claim(claim_request(job, worker=worker))
    assert beside.run_id == run.run_id
    assert delivery.deliver_all()
    assert state_of(beside)[0] == LiveState.RUNNING
