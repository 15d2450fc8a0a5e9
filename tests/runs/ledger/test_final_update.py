"""The update that ends a success writes no index; a failure is in the index of what went wrong."""

from dataclasses import replace

import pytest
from django.db import connection

from runs import history
from runs.models import Attempt, DeadLetter, Run
from runs.models.runs import SAYS_WHY
from runs.states import FinalState
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim, Ledger
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from tests.runs.ledger.claims import DEAD, SUCCESS, claim_request, failed, queued, succeeded, tell
from tests.runs.ledger.claims import either_ledger as ledger
from tests.runs.ledger.claims import ledger as postgres_ledger
from tests.support.factories import make_job, make_worker
from tests.support.waiting import wait_until

__all__ = ["ledger", "postgres_ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
# They share a page: of more that end in one transaction, some would need another one.
RUNS = 8
COUNTS = """
SELECT sum(pg_stat_get_tuples_updated(inhrelid))::int, sum(pg_stat_get_tuples_hot_updated(inhrelid))::int
FROM pg_inherits WHERE inhparent = 'beatkeeper_run'::regclass
"""


def claims_of(ledger: Ledger, count: int) -> list[Claim]:
    job = make_job()
    queued(job, count)
    claims = ledger.claim(claim_request(job, count, make_worker(job.pool, slots=1)))
    assert len(claims) == count
    return claims


def updates_of_runs() -> tuple[int, int]:
    """Return how many updates of runs PostgreSQL has counted, and how many of them wrote no index."""
    with connection.cursor() as cursor:
        cursor.execute(COUNTS)
        found: tuple[int, int] = cursor.fetchone()
        return found


@pytest.mark.parametrize("together", [RUNS, 1])
def test_the_end_of_a_success_writes_no_index(postgres_ledger: PostgresLedger, together: int) -> None:
    claims = claims_of(postgres_ledger, RUNS)
    with connection.cursor() as cursor:
        # What this session updated in other tests is counted now, and not later among the updates of the ledger's.
        cursor.execute("SELECT pg_stat_force_next_flush()")
    updated, hot = updates_of_runs()
    ended = [CompletedClaim(claim, succeeded(), SUCCESS) for claim in claims]
    for first in range(0, RUNS, together):
        postgres_ledger.report(ended[first : first + together])
    # A session counts what it did when it ends.
    postgres_ledger.close()
    wait_until(lambda: updates_of_runs()[0] == updated + RUNS, 10, "the updates to be counted")
    assert updates_of_runs()[1] == hot + RUNS
    assert Run.objects.filter(state=FinalState.SUCCEEDED).count() == RUNS
    assert not Run.objects.filter(SAYS_WHY).exists()


def test_a_failure_without_a_class_is_a_permanent_one_and_listed(ledger: Ledger) -> None:
    [claim] = claims_of(ledger, 1)
    assert tell(ledger, claim, replace(failed(), error_class=None), DEAD) == "dead"
    [run] = history.runs().in_states([FinalState.DEAD])
    assert (run.pk, run.error_class) == (claim.run_id, "permanent")
    assert DeadLetter.objects.get().error_class == "permanent"
    # What the worker said is kept as it said it.
    assert Attempt.objects.get().error_class == ""
