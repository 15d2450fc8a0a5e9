"""Several runs by one request, several ends by one report: what the tables hold, and what is said about each."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from jobs.models import Job, JobStatus
from runs.models import Attempt, LiveRun, Run
from runs.models import Queue as QueueRow
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk.errors import LedgerRefused
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim, Ledger, given_back, token_at
from scheduler_project.sdk.outcomes import TRANSIENT, stated_failure
from scheduler_project.sdk.retries import Verdict
from tests.runs.ledger.claims import SUCCESS, claim_request, failed, queued, succeeded
from tests.runs.ledger.claims import either_ledger as ledger
from tests.runs.ledger.remote import RemoteLedgers
from tests.support.factories import make_job, make_run, make_tenant, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


def claimed(ledger: Ledger, job: Job, count: int) -> list[Claim]:
    queued(job, count)
    claims = ledger.claim(claim_request(job, count))
    assert len(claims) == count
    return claims


def test_the_runs_of_an_ask_are_the_best_of_the_queue_and_named_in_their_order(ledger: Ledger) -> None:
    job = make_job()
    runs = queued(job, 5)
    request = claim_request(job, 3)
    claims = ledger.claim(request)
    assert [claim.run_id for claim in claims] == runs[:3]
    assert [claim.token for claim in claims] == [token_at(request.token, nth) for nth in range(3)]
    assert [claim.attempt for claim in claims] == [1, 1, 1]


def test_a_slot_takes_twice_its_share_of_what_is_queued_at_most(ledger: Ledger) -> None:
    """Or one child would have them all, one after the other, while its brothers are idle."""
    job = make_job()
    worker = make_worker(job.pool, slots=4)
    queued(job, 9)
    assert len(ledger.claim(claim_request(job, 32, worker))) == 5
    assert len(ledger.claim(claim_request(job, 1, worker))) == 1
    assert len(ledger.claim(claim_request(job, 32, worker))) == 2


def test_what_waits_in_other_queues_is_there_for_the_other_slots(ledger: Ledger) -> None:
    job, other = make_job(), make_job()
    worker = make_worker(job.pool, slots=4)
    queued(job, 3)
    for rank in range(9):
        make_run(make_job(other.tenant, job.pool), LiveState.QUEUED, rank=rank)
    # A worker over HTTPS is its tenant's alone: its other slots have the same three.
    most = 2 if isinstance(ledger, RemoteLedgers) else 3
    assert len(ledger.claim(claim_request(job, 32, worker))) == most


def test_a_run_that_is_held_takes_no_token_and_goes_back(ledger: Ledger) -> None:
    job = make_job()
    paused = make_job(job.tenant, job.pool)
    held = make_run(paused, LiveState.QUEUED, rank=0, trigger=Trigger.SCHEDULE)
    Job.objects.filter(pk=paused.pk).update(status=JobStatus.PAUSED)
    runs = [make_run(job, LiveState.QUEUED, rank=rank).run_id for rank in (1, 2)]
    request = claim_request(job, 3)
    claims = ledger.claim(request)
    assert [(claim.run_id, claim.token) for claim in claims] == list(zip(runs, request.tokens, strict=False))
    assert LiveRun.objects.get(pk=held.pk).state == LiveState.READY


def test_an_ask_whose_answer_was_lost_is_answered_with_the_same_claims(ledger: Ledger) -> None:
    job = make_job()
    queued(job, 5)
    request = claim_request(job, 2)
    assert ledger.claim(request) == ledger.claim(request, again=True) != []
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 2


def test_each_of_several_ends_as_it_would_alone(ledger: Ledger) -> None:
    claims = claimed(ledger, make_job(), 4)
    dead = replace(stated_failure(TRANSIENT, "exit", "exit code 3", now(), now()), exit_code=3)
    ended = [
        CompletedClaim(claims[0], succeeded(), SUCCESS),
        CompletedClaim(claims[1], failed(), Verdict("delayed", 30.0)),
        given_back(claims[2]),
        CompletedClaim(claims[3], dead, Verdict("dead")),
    ]
    assert ledger.report(ended).states == ["succeeded", "delayed", "ready", "dead"]
    live = {run.run_id: (run.state, run.attempt) for run in LiveRun.objects.all()}
    assert live == {claims[1].run_id: (LiveState.DELAYED, 1), claims[2].run_id: (LiveState.READY, 0)}
    assert Run.objects.get(id=claims[0].run_id).state == FinalState.SUCCEEDED
    assert Run.objects.get(id=claims[3].run_id).exit_code == 3
    assert ledger.report(list(reversed(ended))).states == ["dead", "ready", "delayed", "succeeded"]
    assert Attempt.objects.count() == 4


def test_what_is_given_back_keeps_its_place_in_the_queue(ledger: Ledger) -> None:
    """Or what waits behind long runs would lose its turn each time it is given back, for as long as others come."""
    [claim] = claimed(ledger, make_job(), 1)
    early = now() - timedelta(minutes=5)
    LiveRun.objects.update(available_at=early, rank=7, queued_at=early)
    assert ledger.report([given_back(claim)]).states == ["ready"]
    live = LiveRun.objects.get()
    assert (live.rank, live.available_at) == (7, early)
    # By this dispatch sees that its handing over has been counted.
    assert live.queued_at == early


def test_what_is_given_back_counts_once_for_the_day(ledger: Ledger, session: psycopg.Connection[Any]) -> None:
    job = make_job(make_tenant(daily_quota=1))
    worker = make_worker(job.pool, slots=1)
    make_run(job)
    for _ in range(3):
        assert dispatch_pool(session, job.pool_id, now()).queued == 1
        [claim] = ledger.claim(claim_request(job, 1, worker))
        ledger.report([given_back(claim)])
    assert QueueRow.objects.get(tenant=job.tenant).day_count == 1


def test_one_that_is_no_longer_ours_costs_the_others_nothing(ledger: Ledger) -> None:
    claims = claimed(ledger, make_job(), 3)
    LiveRun.objects.filter(pk=claims[1].run_id).update(
        state=LiveState.READY, worker=None, claim_token=None, claimed_at=None
    )
    ended = [CompletedClaim(claim, succeeded(), SUCCESS) for claim in claims]
    assert ledger.report(ended).states == ["succeeded", None, "succeeded"]
    assert LiveRun.objects.get().run_id == claims[1].run_id


def test_a_failure_among_several_that_is_to_be_cancelled_is_a_cancellation(ledger: Ledger) -> None:
    claims = claimed(ledger, make_job(), 3)
    LiveRun.objects.filter(pk=claims[1].run_id).update(cancel_requested_at=now(), cancel_reason="enough")
    ended = [CompletedClaim(claim, failed(), Verdict("delayed", 1.0)) for claim in claims[:2]]
    assert ledger.report([*ended, given_back(claims[2])]).states == ["delayed", "cancelled", "ready"]
    assert Run.objects.get(id=claims[1].run_id).reason == "enough"


def test_one_of_a_job_with_a_gate_releases_what_waits_behind_it(ledger: Ledger) -> None:
    job = make_job()
    limited = make_job(job.tenant, job.pool, max_concurrency=1)
    queued(job, 2)
    make_run(limited, LiveState.QUEUED, rank=9)
    waiting = make_run(limited, LiveState.BLOCKED, reason="concurrency")
    claims = ledger.claim(claim_request(job, 3))
    assert [claim.gated for claim in claims] == [False, False, True]
    ended = [CompletedClaim(claim, succeeded(), SUCCESS) for claim in claims]
    assert ledger.report(ended).states == ["succeeded"] * 3
    assert LiveRun.objects.get(pk=waiting.pk).state == LiveState.READY
    assert ledger.report(ended).states == ["succeeded"] * 3


def test_a_report_brings_the_next_claims_of_its_queue(ledger: Ledger) -> None:
    job = make_job()
    runs = queued(job, 4)
    worker = make_worker(job.pool, slots=1)
    first = ledger.claim(claim_request(job, 2, worker))
    ended = [CompletedClaim(claim, succeeded(), SUCCESS) for claim in first]
    request = claim_request(job, 2, worker)
    result = ledger.report(ended, request)
    assert result.states == ["succeeded"] * 2
    assert [claim.run_id for claim in result.claims] == runs[2:]
    # The answer was lost: the ends are told again as they are, and what was requested is requested again.
    assert ledger.report(ended).states == result.states
    assert ledger.claim(request, again=True) == result.claims


def test_what_cannot_be_kept_of_one_changes_nothing_of_any(ledger: Ledger) -> None:
    """So whoever told them together can tell each by itself."""
    job = make_job()
    claims = claimed(ledger, job, 2)
    queued(job, 1)
    bad = stated_failure(TRANSIENT, "ValueError", "no luck", now(), now())
    object.__setattr__(bad, "error_line", "half a \x00 line")
    ended = [CompletedClaim(claims[0], succeeded(), SUCCESS), CompletedClaim(claims[1], bad, Verdict("dead"))]
    with pytest.raises((psycopg.DataError, LedgerRefused)):
        ledger.report(ended, claim_request(job, 1))
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 2
    assert ledger.report(ended[:1]).states == ["succeeded"]
