"""Attacks promise 8: bulk never enters PostgreSQL, whichever way a body tries to leave it there."""

from pathlib import Path

import pytest
from celery import Celery
from django.db import connection

from runs.models import Attempt as AttemptRow
from runs.states import LiveState
from scheduler_project.sdk.execution.attempt import execute
from scheduler_project.sdk.execution.interrupts import Interrupts
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import LogPointer
from scheduler_project.sdk.retries import verdict_on
from scheduler_project.sdk.targets.registry import Executor, TargetCall, Targets
from tests.runs.ledger.claims import claim_next, ledger, tell
from tests.runs.targets.executed import OneSlot
from tests.support.factories import make_job, make_run

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
MEGABYTE = 1_000_000
ROWS = """
    SELECT octet_length(to_jsonb(run)::text) + octet_length(to_jsonb(attempt)::text)
    FROM beatkeeper_run run JOIN beatkeeper_attempt attempt ON attempt.run_id = run.id
"""


def prints(_attempt: TargetCall) -> None:
    for _ in range(MEGABYTE // 100):
        print("x" * 99)  # noqa: T201


def prints_and_returns(attempt: TargetCall) -> str:
    prints(attempt)
    return "x" * MEGABYTE


def prints_and_fails(attempt: TargetCall) -> None:
    prints(attempt)
    raise ValueError("x" * MEGABYTE)


@pytest.mark.parametrize("body", [prints, prints_and_returns, prints_and_fails])
def test_a_megabyte_leaves_a_pointer_in_the_database_and_itself_in_the_store(
    ledger: PostgresLedger, tmp_path: Path, body: Executor
) -> None:
    job = make_job()
    make_run(job, LiveState.QUEUED)
    claim = claim_next(ledger, job)
    assert claim is not None
    slot, targets = OneSlot(tmp_path), Targets(Celery("bulk", broker="memory://", set_as_current=False))
    assert slot.owned_slot is not None
    targets.add("celery", body)
    outcome = execute(claim, slot.owned_slot, targets, slot.store, Interrupts(slot.owned_slot), "w")
    tell(ledger, claim, outcome, verdict_on(outcome, 1, {"max_attempts": 1}))
    with connection.cursor() as cursor:
        cursor.execute(ROWS)
        [[size]] = cursor.fetchall()
    assert size < 4_000
    row = AttemptRow.objects.get()
    assert row.log_offset is not None and row.log_length is not None
    text = slot.store.read(LogPointer(row.log_object, row.log_offset, row.log_length))
    assert text.count(b"x") > 0.9 * MEGABYTE
