"""Attacks prepared statements: one that is lost, taken or out of date costs one more request and no run."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from jobs.models import Job
from runs.models import LiveRun, Run
from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import Outcome
from tests.races.staging import dsn
from tests.runs.ledger.claims import DEAD, SUCCESS, claim_request, failed, ledger, queued, succeeded
from tests.support.factories import make_job, make_worker

pytestmark = pytest.mark.django_db(transaction=True)
__all__ = ["ledger"]
STATEMENTS = "SELECT name FROM pg_prepared_statements WHERE NOT from_sql"


def session_of(ledger: PostgresLedger) -> psycopg.Connection[Any]:
    assert ledger._connection is not None
    return ledger._connection


def prepared(ledger: PostgresLedger) -> list[str]:
    return [row["name"] for row in session_of(ledger).execute(STATEMENTS)]


def lose(ledger: PostgresLedger) -> None:
    """Do as a pooler that hands the next transaction to another session."""
    for name in prepared(ledger):
        session_of(ledger).execute(f'DEALLOCATE "{name}"')


def take_next_name(ledger: PostgresLedger) -> None:
    """Do as a pooler that hands it to a session where another client has prepared something by that name."""
    number = session_of(ledger)._prepared._prepared_idx
    session_of(ledger).execute("DEALLOCATE ALL")
    session_of(ledger)._prepared.clear()
    session_of(ledger).execute(f'PREPARE "_pg3_{number}" AS SELECT 1')


@pytest.fixture
def other_name_length(job: Job) -> Iterator[None]:
    """Restore the column that a test has altered."""
    yield
    with psycopg.connect(dsn(), autocommit=True) as session:
        session.execute("ALTER TABLE beatkeeper_job ALTER COLUMN name TYPE varchar(120)")


def alter_table(ledger: PostgresLedger) -> None:
    """Do as a migration: the claim's answer has another type than when it was prepared."""
    with psycopg.connect(dsn(), autocommit=True) as session:
        session.execute("ALTER TABLE beatkeeper_job ALTER COLUMN name TYPE varchar(121)")


@pytest.fixture
def job() -> Job:
    return make_job()


def one(claim: Claim, outcome: Outcome | None = None) -> CompletedClaim:
    outcome = outcome or succeeded()
    return CompletedClaim(claim, outcome, SUCCESS if outcome.succeeded else DEAD)


def test_a_session_holds_each_statement_once_whatever_the_values(ledger: PostgresLedger, job: Job) -> None:
    """The driver tells the server types of lists that depend on what is in them."""
    worker = make_worker(job.pool)
    for expected in [None, {}, {str(job.tenant_id): 5}, {str(2**20): 70_000}, {"1": 1, "2": 40_000}]:
        queued(job, 3)
        request = replace(claim_request(job, 2, worker), expected_ms=expected)
        ledger.report([one(claim) for claim in ledger.claim(request)], claim_request(job, 1, worker))
    assert len(prepared(ledger)) == 2, "the claim, and how it is planned"


def test_two_connections_never_have_a_statement_by_one_name(job: Job) -> None:
    ledgers = [PostgresLedger(dsn()) for _ in range(3)]
    for each in ledgers:
        each.claim(claim_request(job))
    names = [name for each in ledgers for name in prepared(each)]
    assert len(set(names)) == len(names) == 6
    for each in ledgers:
        each.close()


@pytest.mark.parametrize("happens", [lose, take_next_name, alter_table])
def test_a_claim_that_fails_as_prepared_is_asked_again(
    ledger: PostgresLedger, job: Job, happens: Any, other_name_length: None
) -> None:
    worker = make_worker(job.pool)
    queued(job, 2)
    first = ledger.claim(claim_request(job, 1, worker))
    happens(ledger)
    request = claim_request(job, 1, worker)
    second = ledger.claim(request)
    assert len(first) == len(second) == 1 and first[0].run_id != second[0].run_id
    assert not prepared(ledger), "a connection that does not keep them gets no more"
    assert LiveRun.objects.filter(state="running", attempt=1).count() == 2


@pytest.mark.parametrize("happens", [lose, take_next_name])
def test_a_report_that_fails_as_prepared_is_sent_again(
    ledger: PostgresLedger, job: Job, happens: Any
) -> None:
    """With the claim that travels with it: both are rolled back, and neither is done twice."""
    worker = make_worker(job.pool)
    queued(job, 3)
    claims = ledger.claim(claim_request(job, 2, worker))
    ledger.report([one(claims[0])])
    happens(ledger)
    request = claim_request(job, 1, worker)
    done = ledger.report([one(claims[1], failed())], request)
    assert done.states == ["dead"] and len(done.claims) == 1


def test_through_a_pooler_of_two_connections_every_run_is_claimed_and_ended_once(
    pooled_database_url: str, job: Job
) -> None:
    """Debian's PgBouncer carries no prepared statements: each client notices that once."""
    worker = make_worker(job.pool, slots=9)
    ids = set(queued(job, 60))

    def work(_: int) -> list[UUID]:
        ledger, ended, request = (
            PostgresLedger(pooled_database_url),
            list[UUID](),
            claim_request(job, 3, worker),
        )
        while claims := ledger.claim(request):
            assert ledger.report([one(claim) for claim in claims]).states == ["succeeded"] * len(claims)
            ended += [claim.run_id for claim in claims]
            request = claim_request(job, 3, worker)
        ledger.close()
        return ended

    with ThreadPoolExecutor(6) as pool:
        ended = [run for some in pool.map(work, range(6)) for run in some]
    assert sorted(ended) == sorted(ids)
    assert Run.objects.filter(state="succeeded", attempts=1).count() == 60
