"""Callbacks against reports, deadlines, cancels and each other, each on its own connection (promises 3 and 4)."""

from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from jobs.errors import DomainError
from runs.ledger import callbacks
from runs.models import Attempt, LiveRun, Run
from runs.sql import django_session
from runs.states import LiveState
from runs.transitions import Cancelled, cancel_live_runs
from scheduler_project.sdk.ledger.callback_token import token_of
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim, Ledger
from scheduler_project.sdk.ledger.postgres import SQL, report_values
from scheduler_project.sdk.retries import verdict_on
from tests.races.staging import dsn, meanwhile, result_after, second_connection, waiting_for
from tests.runs.ledger.claims import either_ledger as ledger
from tests.runs.ledger.test_callbacks import accepted, claimed, waiting
from tests.support.factories import make_run, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)

SUCCESS = {"outcome": "succeeded", "result": 1}


def complete(claim: Claim, token: str, **body: Any) -> Any:
    """As a web process does, on a connection of its own."""
    try:
        return callbacks.complete(claim.run_id, token, body or SUCCESS)
    except DomainError as refused:
        return refused.code


def give_up() -> int:
    with psycopg.connect(dsn(), autocommit=True) as session:
        return callbacks.give_up(session, now(), 100)


def test_a_callback_that_meets_the_report_of_the_202_waits_for_it_and_ends_the_run(ledger: Ledger) -> None:
    claim = claimed(ledger)
    token = token_of(claim.token, claim.run_id, claim.claim_seq)
    outcome = accepted(claim)
    values = report_values([CompletedClaim(claim, outcome, verdict_on(outcome, 1, claim.retry))])
    with second_connection() as worker:
        worker.execute(SQL["end_attempts"], values)
        assert result_after(worker, lambda: complete(claim, token))["state"] == "succeeded"
    assert Run.objects.get().ended_from == "waiting_callback"
    assert (Attempt.objects.count(), LiveRun.objects.count()) == (1, 0)


def test_the_report_of_a_202_that_meets_the_callback_waits_for_it_and_changes_nothing(ledger: Ledger) -> None:
    """The other way round: the callback of a run that is still `running`."""
    claim = claimed(ledger)
    outcome = accepted(claim)
    with second_connection() as web:
        web.execute(SQL["end_attempts"], _completion(claim))
        result_after(
            web, lambda: ledger.report([CompletedClaim(claim, outcome, verdict_on(outcome, 1, claim.retry))])
        )
    assert Run.objects.get().state == "succeeded"
    assert (Attempt.objects.get().callback_content, LiveRun.objects.count()) == ("c" * 64, 0)


def test_of_a_callback_and_a_missed_deadline_the_first_ends_the_attempt(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    LiveRun.objects.update(wake_at=now() - timedelta(seconds=1))
    with second_connection() as web:
        web.execute(SQL["end_attempts"], _completion(claim))
        result_after(web, give_up)
    assert Run.objects.get().state == "succeeded"
    assert Attempt.objects.get().outcome == "succeeded"


def test_a_callback_after_a_missed_deadline_learns_of_it(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    overdue = callbacks.overdue(django_session(), now() + timedelta(days=1), 100)
    with second_connection() as recovery:
        recovery.execute(SQL["end_attempts"], report_values(overdue))
        assert result_after(recovery, lambda: complete(claim, token)) == "callback_over"
    assert LiveRun.objects.get().state == LiveState.DELAYED
    assert Attempt.objects.get().outcome == "timeout"


def test_a_callback_that_meets_a_cancel_learns_of_it(ledger: Ledger) -> None:
    claim, token = waiting(ledger)
    with second_connection() as web:
        _cancel(web, claim)
        assert result_after(web, lambda: complete(claim, token)) == "callback_over"
    assert Run.objects.get().state == "cancelled"


def test_a_cancel_that_meets_a_callback_finds_the_run_ended(ledger: Ledger) -> None:
    claim, _ = waiting(ledger)
    with second_connection() as web:
        web.execute(SQL["end_attempts"], _completion(claim))
        with second_connection() as other:
            assert result_after(web, lambda: _cancel(other, claim)) == Cancelled([], [])
            other.commit()
    assert Run.objects.get().state == "succeeded"


@pytest.mark.parametrize(
    ("second", "answer"), [(SUCCESS, "succeeded"), ({"outcome": "failed"}, "callback_over")]
)
def test_of_two_callbacks_one_ends_the_run_and_the_other_learns_what_became_of_it(
    ledger: Ledger, second: dict[str, Any], answer: str
) -> None:
    claim, token = waiting(ledger)
    content = callbacks.read_content(SUCCESS).digest
    with second_connection() as first:
        first.execute(SQL["end_attempts"], _completion(claim, content))
        with waiting_for(first, lambda: complete(claim, token, **second)) as other:
            first.commit()
            assert _state(other) == answer
    assert Attempt.objects.count() == 1 and Run.objects.get().state == "succeeded"


def test_two_callbacks_of_a_job_with_a_limit_let_one_more_go_each(ledger: Ledger) -> None:
    first, token = waiting(ledger)
    job = Run.objects.get().job
    second, other_token = waiting(ledger, job)
    held = [make_run(job, LiveState.BLOCKED, reason="concurrency", gated=True) for _ in range(2)]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO beatkeeper_job_gate (job_id, max_running) VALUES (%s, 2)", [job.pk])
        cursor.execute("UPDATE beatkeeper_live_run SET gated = true")
    with (
        meanwhile(lambda: complete(first, token)) as one,
        meanwhile(lambda: complete(second, other_token)) as two,
    ):
        assert {_state(one), _state(two)} == {"succeeded"}
    assert {run.state for run in LiveRun.objects.filter(pk__in=[run.pk for run in held])} == {LiveState.READY}


def _state(callback: "Future[Any]") -> Any:
    answer = callback.result(timeout=60)
    return answer["state"] if isinstance(answer, dict) else answer


def _completion(claim: Claim, content: str = "c" * 64) -> dict[str, Any]:
    outcome = accepted(claim, callback_content=content)
    return report_values([CompletedClaim(claim, outcome, verdict_on(outcome, 1, claim.retry))])


def _cancel(session: Any, claim: Claim) -> Cancelled:
    return cancel_live_runs(session, [claim.run_id], "")
