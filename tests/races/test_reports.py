"""Reports against reports, cancels and claims, each on its own connection (promises 3 and 4)."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db.models.functions import Now

from jobs.models import Job
from runs.models import LiveRun, Run
from runs.states import LiveState
from scheduler_project.sdk.ledger.interface import Beat, Claim, CompletedClaim, Ledger
from scheduler_project.sdk.ledger.postgres import SQL, report_values
from scheduler_project.sdk.retries import Verdict
from tests.races.staging import result_after, second_connection, waiting_for
from tests.runs.ledger.claims import SUCCESS, claim_next, failed, open_ledger, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import make_job, make_run, make_worker

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


def test_two_reports_racing_release_the_blocked_run_once_and_never_leave_it(ledger: Ledger) -> None:
    """Each would see the other still running, and nobody would release: the gate makes one look after the other."""
    job = make_job(max_concurrency=2)
    claims = [_claim_one(ledger, job) for _ in range(2)]
    blocked = make_run(job, LiveState.BLOCKED, reason="concurrency")
    with second_connection() as first:
        first.execute(SQL["lock_gate"], {"job_id": job.id})
        first.execute(SQL["end_attempts"], _values(claims[0]))
        with waiting_for(first, lambda: tell(ledger, claims[1], succeeded(), SUCCESS)) as second:
            first.execute(SQL["release_gated"], {"jobs": [job.id]})
            first.commit()
            assert second.result(timeout=60) == "succeeded"
    assert LiveRun.objects.get().run_id == blocked.run_id
    assert LiveRun.objects.get().state == LiveState.READY


def test_failure_that_meets_an_uncommitted_cancel_waits_and_becomes_a_cancellation(
    ledger: Ledger,
) -> None:
    claim = _claim_one(ledger, make_job())
    with second_connection() as canceller:
        canceller.execute("UPDATE beatkeeper_live_run SET cancel_requested_at = now()")
        reported = result_after(canceller, lambda: tell(ledger, claim, failed(), Verdict("delayed", 5.0)))
        assert reported == "cancelled"
    assert Run.objects.get().state == "cancelled"
    assert not LiveRun.objects.exists()


def test_acknowledged_cancel_of_a_run_that_is_just_ending_changes_nothing(ledger: Ledger) -> None:
    """The heartbeat was composed before the report: it waits, and finds no row any more."""
    claim = _claim_one(ledger, make_job())
    LiveRun.objects.update(cancel_requested_at=Now())
    beat = Beat(claim.incarnation, 1, 0, 1, 1, 0, [claim.token], False, stopping=[claim.token])
    with second_connection() as reporter:
        reporter.execute(SQL["end_attempts"], _values(claim))
        assert result_after(reporter, lambda: ledger.heartbeat(beat)).gone == [claim.token]
    assert Run.objects.get().state == "succeeded"
    assert not LiveRun.objects.exists()


def test_report_that_meets_an_uncommitted_loss_waits_and_changes_nothing(ledger: Ledger) -> None:
    claim = _claim_one(ledger, make_job())
    with second_connection() as recovering:
        recovering.execute(
            "UPDATE beatkeeper_live_run SET state = 'ready', worker = NULL, claim_token = NULL, claimed_at = NULL"
        )
        assert result_after(recovering, lambda: tell(ledger, claim, succeeded(), SUCCESS)) is None
    assert LiveRun.objects.get().state == LiveState.READY
    assert Run.objects.get().state is None


def test_the_same_report_sent_twice_at_once_is_one_attempt(ledger: Ledger) -> None:
    claim = _claim_one(ledger, make_job())
    with second_connection() as first:
        first.execute(SQL["end_attempts"], _values(claim))
        assert result_after(first, lambda: tell(ledger, claim, succeeded(), SUCCESS)) == "succeeded"


def test_claims_step_over_a_row_that_another_claim_holds(ledger: Ledger) -> None:
    job = make_job()
    first, second = (make_run(job, LiveState.QUEUED, rank=rank) for rank in (1, 2))
    with second_connection() as other:
        other.execute("SELECT FROM beatkeeper_live_run WHERE id = %s FOR UPDATE", [first.run_id])
        claim = claim_next(ledger, job)
        assert claim is not None and claim.run_id == second.run_id


def test_a_crowd_of_claims_shares_the_runs_without_a_double() -> None:
    job = make_job()
    worker = make_worker(job.pool)
    runs = {make_run(job, LiveState.QUEUED).run_id for _ in range(200)}

    def claim_all() -> list[Claim]:
        own = open_ledger()
        try:
            return list(iter(lambda: claim_next(own, job, worker=worker), None))
        finally:
            own.close()

    with ThreadPoolExecutor(max_workers=6) as crowd:
        taken = [
            claim.run_id
            for future in [crowd.submit(claim_all) for _ in range(6)]
            for claim in future.result()
        ]
    assert len(taken) == 200
    assert set(taken) == runs


def _claim_one(ledger: Ledger, job: Job) -> Claim:
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim


def _values(claim: Claim) -> dict[str, list[Any]]:
    return report_values([CompletedClaim(claim, succeeded(), SUCCESS)])
