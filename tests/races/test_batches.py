"""Batches of claims and of reports against whoever else moves one of their runs, each on its own connection."""

import pytest

from jobs.models import Job, JobStatus
from runs.models import Attempt, LiveRun, WorkerNode
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.states import LiveState, Trigger
from runs.transitions import cancel_live_runs
from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim, Ledger
from scheduler_project.sdk.ledger.postgres import SQL, claim_values, report_values
from tests.races.staging import Session, result_after, second_connection, waiting_for
from tests.runs.ledger.claims import SUCCESS, claim_request, once_it_answers, queued, succeeded
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import make_job, make_run

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


def claimed(ledger: Ledger, job: Job, worker: WorkerNode, count: int = 3) -> list[Claim]:
    queued(job, count)
    claims = ledger.claim(claim_request(job, count, worker))
    assert len(claims) == count
    return claims


def ends(claims: list[Claim]) -> list[CompletedClaim]:
    return [CompletedClaim(claim, succeeded(), SUCCESS) for claim in claims]


def test_a_batch_steps_over_what_another_claim_holds(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    runs = queued(job, 5)
    other.execute(SQL["claim"], claim_values(claim_request(job, 3, worker)))
    assert [claim.run_id for claim in ledger.claim(claim_request(job, 3, worker))] == runs[3:]
    other.commit()
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 5


def test_a_batch_leaves_out_what_is_being_cancelled(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    runs = queued(job, 3)
    assert cancel_live_runs(other, [runs[1]], "enough").ended == [runs[1]]
    assert [claim.run_id for claim in ledger.claim(claim_request(job, 3, worker))] == [runs[0], runs[2]]
    other.commit()
    assert ledger.claim(claim_request(job, 3, worker)) == []


def test_a_cancel_that_meets_a_batch_waits_and_asks_the_worker(
    other: Session, job: Job, worker: WorkerNode
) -> None:
    runs = queued(job, 3)
    other.execute(SQL["claim"], claim_values(claim_request(job, 3, worker)))
    with second_connection() as canceller:
        asked = result_after(other, lambda: cancel_live_runs(canceller, runs[1:2], "x"))
        assert asked.requested == runs[1:2]
        canceller.commit()
    assert LiveRun.objects.get(pk=runs[1]).cancel_requested_at is not None


def test_of_a_batch_that_meets_a_pause_only_what_is_not_paused_is_claimed(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    paused = make_job(job.tenant, job.pool)
    make_run(paused, LiveState.QUEUED, rank=0, trigger=Trigger.SCHEDULE)
    make_run(job, LiveState.QUEUED, rank=1)
    other.execute("UPDATE beatkeeper_job SET status = %s WHERE id = %s", [JobStatus.PAUSED, paused.id])
    first = ledger.claim(claim_request(job, 1, worker))
    assert [claim.job_id for claim in first] == [paused.id], "the pause was not committed then"
    make_run(paused, LiveState.QUEUED, rank=0, trigger=Trigger.SCHEDULE)
    other.commit()
    assert [claim.job_id for claim in ledger.claim(claim_request(job, 3, worker))] == [job.id]


def test_a_request_that_is_still_under_way_is_not_doubled_by_its_repetition(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    """The connection was cut, the statement was not: the next answer names what the first request got, and no more."""
    runs, request = queued(job, 6), claim_request(job, 3, worker)
    other.execute(SQL["claim"], claim_values(request))
    with pytest.raises(LedgerUnavailable):
        result_after(other, lambda: ledger.claim(request, again=True))
    claims = once_it_answers(lambda: ledger.claim(request, again=True))
    assert [claim.run_id for claim in claims] == runs[:3]
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 3


def test_a_batch_that_meets_the_loss_of_one_of_its_runs_tells_the_others(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    claims = claimed(ledger, job, worker)
    lost = claims[1]
    other.execute("SELECT")
    assert fail_claims(other, {lost.run_id: lost.claim_seq}, "lost")
    states = result_after(other, lambda: ledger.report(ends(claims)).states)
    assert states == ["succeeded", "delayed", "succeeded"], "what recovery decided stands"


def test_a_batch_reported_twice_at_once_is_one_attempt_of_each(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    claims = claimed(ledger, job, worker)
    other.execute(SQL["end_attempts"], report_values(ends(claims)))
    assert result_after(other, lambda: ledger.report(ends(claims)).states) == ["succeeded"] * 3
    assert Attempt.objects.count() == 3


def test_reports_lock_in_the_order_of_ids_whatever_order_they_are_reported_in(
    ledger: Ledger, other: Session, job: Job, worker: WorkerNode
) -> None:
    claims = sorted(claimed(ledger, job, worker), key=lambda claim: claim.run_id)
    lock = "SELECT FROM beatkeeper_live_run WHERE id = %s FOR UPDATE"
    other.execute("SET lock_timeout = '5s'")
    other.execute(lock, [claims[0].run_id])
    with waiting_for(other, lambda: ledger.report(ends(claims[::-1])).states) as report:
        # It waits for the first and holds none of those behind it.
        other.execute(lock, [claims[2].run_id])
        other.commit()
        assert report.result(timeout=60) == ["succeeded"] * 3
