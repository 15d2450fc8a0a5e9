"""Reports, recovery, dispatch and people at one breaker, each on its own connection: the gate puts them in a row."""

from contextlib import ExitStack
from datetime import timedelta

import pytest

from jobs.models import Job
from runs.models import Breaker, BreakerState, LiveRun
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.scheduler.recovery import unblock as sweep
from runs.services import breakers
from runs.states import LiveState
from scheduler_project.sdk.ledger.interface import Claim, Ledger
from scheduler_project.sdk.ledger.postgres import SQL
from scheduler_project.sdk.retries import Verdict
from tests.races.staging import Session, result_after, second_connection, waiting_for
from tests.runs.ledger.claims import DEAD, SUCCESS, claim_next, failed, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.support.factories import make_job, make_run, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job() -> Job:
    found = make_job(spec={"breaker": {"failures": 2, "cooldown": 300}})
    make_worker(found.pool)
    return found


def claim_one(ledger: Ledger, job: Job) -> Claim:
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job)
    assert claim is not None
    return claim


def opened(job: Job, *, cooled: bool = True) -> None:
    at = now()
    probe_at = at - timedelta(seconds=1) if cooled else at + timedelta(seconds=300)
    Breaker.objects.filter(job=job).update(state="open", failures=2, opened_at=at, probe_at=probe_at)


def held(job: Job, count: int) -> list[LiveRun]:
    return [make_run(job, LiveState.BLOCKED, reason="breaker") for _ in range(count)]


def look(session: Session, job: Job) -> int:
    return sweep.release(session, "breaker", [job.pk], now(), 100)


def test_two_failures_reported_at_once_are_two(ledger: Ledger, job: Job) -> None:
    """Each would count from none to one, and the breaker stay closed."""
    one, two = claim_one(ledger, job), claim_one(ledger, job)
    with second_connection() as first:
        first.execute(SQL["lock_gate"], {"job_id": job.pk})
        first.execute(SQL["note_breaker"], {"job_id": job.pk, "run_id": one.run_id, "failed": True})
        assert result_after(first, lambda: tell(ledger, two, failed(), DEAD)) == "dead"
    assert (Breaker.objects.get().state, Breaker.objects.get().failures) == (BreakerState.OPEN, 2)


def test_two_recoveries_send_one_probe(first: Session, second: Session, job: Job) -> None:
    opened(job)
    held(job, 3)
    with first.transaction():
        assert look(first, job) == 0
        assert look(second, job) == 0, "the gate is in the other's hands"
    look(second, job)
    assert Breaker.objects.get().state == BreakerState.HALF_OPEN
    assert LiveRun.objects.filter(state="ready").count() == 1
    assert LiveRun.objects.filter(state="blocked").count() == 2


def test_a_failure_of_the_probe_that_meets_a_person_who_closes_opens_nothing_twice(
    ledger: Ledger, job: Job
) -> None:
    """Who comes second acts on what the first has left: the person closes what the report has opened again."""
    probe = claim_one(ledger, job)
    at = now()
    Breaker.objects.update(state="half_open", failures=2, probe=probe.run_id, opened_at=at)
    waiting = held(job, 2)
    with second_connection() as reporter:
        reporter.execute(SQL["lock_gate"], {"job_id": job.pk})
        reporter.execute(SQL["note_breaker"], {"job_id": job.pk, "run_id": probe.run_id, "failed": True})
        closed = result_after(reporter, lambda: breakers.close_breaker(job, "fixed"))
        assert closed.state == BreakerState.CLOSED
    states = LiveRun.objects.filter(pk__in=[run.pk for run in waiting]).values_list("state", flat=True)
    assert set(states) == {"ready"}


def test_a_probe_that_succeeds_while_another_is_chosen_leaves_no_run_behind(
    ledger: Ledger, first: Session, job: Job
) -> None:
    probe = claim_one(ledger, job)
    Breaker.objects.update(state="half_open", failures=2, probe=probe.run_id, opened_at=now())
    held(job, 3)
    with ExitStack() as sweeping:
        sweeping.enter_context(first.transaction())
        look(first, job)
        with waiting_for(first, lambda: tell(ledger, probe, succeeded(), SUCCESS)) as report:
            assert Breaker.objects.get().probe == probe.run_id, "it is under way: no other is chosen"
            sweeping.close()
            assert report.result(timeout=60) == "succeeded"
    assert Breaker.objects.get().state == BreakerState.CLOSED
    assert LiveRun.objects.filter(state="ready").count() == 3


def test_a_run_that_is_held_while_the_breaker_closes_goes_with_the_next_look(
    first: Session, second: Session, job: Job
) -> None:
    """Dispatch saw it open and holds the run after everything else was let go."""
    opened(job)
    late = make_run(job)
    with first.transaction():
        dispatch_pool(first, job.pool_id, now())
        with second.transaction():
            second.execute("UPDATE beatkeeper_breaker SET state = 'closed', failures = 0")
            second.execute(SQL["release_broken"], {"jobs": [job.pk], "most": 10})
    late.refresh_from_db()
    assert (late.state, late.reason) == ("blocked", "breaker")
    assert look(second, job) == 1
    late.refresh_from_db()
    assert late.state == "ready"


def test_a_run_queued_while_the_breaker_opens_is_not_claimed(
    ledger: Ledger, first: Session, job: Job
) -> None:
    """Dispatch saw it closed; the claim looks again."""
    failing = claim_one(ledger, job)
    tell(ledger, failing, failed(), Verdict("dead"))
    second_failing = claim_one(ledger, job)
    run = make_run(job)
    with first.transaction():
        dispatch_pool(first, job.pool_id, now())
        tell(ledger, second_failing, failed(), Verdict("dead"))
    run.refresh_from_db()
    assert (run.state, Breaker.objects.get().state) == ("queued", "open")
    assert claim_next(ledger, job) is None
    run.refresh_from_db()
    assert run.state == "ready"
