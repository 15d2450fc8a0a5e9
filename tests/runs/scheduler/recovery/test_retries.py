"""What the ledger keeps of a failed attempt for the next one: its losses, its policy, its changed arguments."""

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from jobs.models import Job
from runs.models import LiveRun, Run
from runs.scheduler.recovery.recover import RecoveryMemory, recover_once
from runs.states import LiveState
from scheduler_project.sdk.ledger.interface import Claim, Ledger, given_back
from scheduler_project.sdk.outcomes import WORKER_LOST, stated_failure
from scheduler_project.sdk.retries import Verdict, verdict_on
from tests.runs.ledger.claims import claim_next, failed, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import make_job, make_run, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
AGAIN = Verdict("delayed", 5.0)


def claim_of(ledger: Ledger, job: Job, **fields: Any) -> Claim:
    make_run(job, LiveState.QUEUED, **fields)
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim


def lost() -> Any:
    return stated_failure(WORKER_LOST, "WorkerLost", "killed", now(), now())


def wake(claim: Claim) -> None:
    for state in (LiveState.READY, LiveState.QUEUED):
        LiveRun.objects.filter(run=claim.run_id).update(state=state, queued_at=now())


def test_a_loss_that_a_worker_reports_counts_as_one_that_recovery_finds(ledger: Ledger) -> None:
    job = make_job()
    claim = claim_of(ledger, job)
    assert tell(ledger, claim, lost(), AGAIN) == "delayed"
    live = LiveRun.objects.get()
    assert (live.losses, live.attempt, live.reason) == (1, 1, "worker_lost")
    wake(claim)
    second = claim_next(ledger, job)
    assert second is not None
    assert (second.losses, second.attempt) == (1, 2)


def test_a_failure_is_no_loss(ledger: Ledger) -> None:
    claim = claim_of(ledger, make_job())
    tell(ledger, claim, failed(), AGAIN)
    live = LiveRun.objects.get()
    assert (live.losses, live.reason) == (0, "retry")


def test_a_give_back_counts_neither_way(ledger: Ledger) -> None:
    ledger.report([given_back(claim_of(ledger, make_job()))])
    live = LiveRun.objects.get()
    assert (live.losses, live.attempt, live.reason) == (0, 0, "given_back")


def test_a_claim_asked_again_knows_of_the_losses_too(ledger: Ledger) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    make_run(job, LiveState.QUEUED, losses=2)
    claim = claim_next(ledger, job, worker=worker)
    assert claim is not None
    again = claim_next(ledger, job, worker=worker, token=claim.token, again=True)
    assert again is not None and again.losses == 2


def test_the_next_attempt_gets_what_the_task_has_changed(ledger: Ledger) -> None:
    job = make_job()
    claim = claim_of(ledger, job, input={"args": [1]})
    tell(ledger, claim, replace(failed(), next_input={"args": [2]}), AGAIN)
    wake(claim)
    second = claim_next(ledger, job)
    assert second is not None and second.input == {"args": [2]}
    assert Run.objects.get().input is None, "what was asked for stays as it was"


def test_the_next_attempt_may_be_given_nothing(ledger: Ledger) -> None:
    claim = claim_of(ledger, make_job(), input={"args": [1]})
    assert tell(ledger, claim, replace(failed(), next_input={}), AGAIN) == "delayed"
    assert LiveRun.objects.get(pk=claim.run_id).input == {}


def test_a_run_keeps_its_input_when_nothing_is_changed(ledger: Ledger) -> None:
    claim = claim_of(ledger, make_job(), input={"args": [1]})
    tell(ledger, claim, failed(), AGAIN)
    assert LiveRun.objects.get().input == {"args": [1]}


@pytest.mark.parametrize(("most", "losses", "state"), [(5, 3, "delayed"), (5, 4, "dead"), (1, 0, "dead")])
def test_guard_and_recovery_keep_to_the_jobs_cap_of_losses(
    ledger: Ledger, session: psycopg.Connection[Any], most: int, losses: int, state: str
) -> None:
    """Of attempts it may have one: losses take nothing from it."""
    retry = {"max_attempts": 1, "backoff": "immediate", "base": 1, "cap": 1, "max_losses": most}
    job = make_job(spec={"retry": retry})
    by_guard = claim_of(ledger, job, losses=losses)
    verdict = verdict_on(lost(), by_guard.attempt, by_guard.retry, losses=by_guard.losses)
    assert tell(ledger, by_guard, lost(), verdict) == state
    at = now()
    worker = make_worker(job.pool, state="lost")
    by_recovery = make_run(job, LiveState.RUNNING, worker=worker, losses=losses, attempt=losses + 1)
    recover_once(session, RecoveryMemory(trusted_from=at, last_pass=at), at)
    found = Run.objects.get(pk=by_recovery.pk)
    assert (found.state or found.live.state) == state
