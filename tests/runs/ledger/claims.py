"""Short words for tests that claim and report through the worker's ledger."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

import pytest

from jobs.models import Job
from runs.models import WorkerNode
from runs.states import LiveState
from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.ledger.interface import (
    Claim,
    ClaimRequest,
    CompletedClaim,
    Ledger,
    WorkQueue,
    base_token,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import TRANSIENT, Outcome, stated_failure
from scheduler_project.sdk.retries import Verdict
from tests.races.staging import dsn
from tests.runs.ledger.remote import RemoteLedgers
from tests.support.factories import TASK, make_run, make_worker, now
from tests.support.waiting import wait_until

T = TypeVar("T")
WayToLedger = Callable[[], PostgresLedger | RemoteLedgers]
SUCCESS = Verdict("succeeded")
DEAD = Verdict("dead")


def open_ledger() -> PostgresLedger:
    return PostgresLedger(dsn())


@pytest.fixture
def ledger() -> Iterator[PostgresLedger]:
    ledger = open_ledger()
    yield ledger
    ledger.close()


@pytest.fixture(params=["postgres", "https"])
def either_ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    """One after the other: what is promised of the one is promised of the other."""
    ledger = way_to_ledger(request)()
    yield ledger
    ledger.close()


@pytest.fixture(params=["postgres", "https"])
def way_to_either_ledger(request: pytest.FixtureRequest) -> WayToLedger:
    """For workers that have one each."""
    return way_to_ledger(request)


def way_to_ledger(request: pytest.FixtureRequest) -> WayToLedger:
    if request.param == "postgres":
        return open_ledger
    port, ca = request.getfixturevalue("api_port"), request.getfixturevalue("own_ca")
    return lambda: RemoteLedgers(f"https://localhost:{port}", ca.ca)


def once_it_answers(request: Callable[[], T]) -> T:
    """Over HTTPS a ledger that was away is left in peace for a moment."""
    answers: list[T] = []

    def answered() -> bool:
        try:
            answers.append(request())
        except LedgerUnavailable:
            return False
        return True

    wait_until(answered, 15, "the ledger to answer")
    return answers[0]


def queued(job: Job, count: int) -> list[UUID]:
    return [make_run(job, LiveState.QUEUED, rank=rank).run_id for rank in range(count)]


def claim_request(
    job: Job,
    most: int = 1,
    worker: WorkerNode | None = None,
    *,
    token: UUID | None = None,
    known: Sequence[str] = (TASK,),
) -> ClaimRequest:
    worker = worker or make_worker(job.pool, slots=1)
    queue = WorkQueue(0, job.pool_id, job.tenant_id, "")
    return ClaimRequest(worker.incarnation, token or base_token(), queue, list(known), most)


def claim_next(
    ledger: Ledger,
    job: Job,
    *,
    worker: WorkerNode | None = None,
    token: UUID | None = None,
    known: Sequence[str] = (TASK,),
    again: bool = False,
) -> Claim | None:
    request = claim_request(job, worker=worker or make_worker(job.pool), token=token, known=known)
    return next(iter(ledger.claim(request, again=again)), None)


def tell(ledger: Ledger, claim: Claim, outcome: Outcome, verdict: Verdict) -> str | None:
    return ledger.report([CompletedClaim(claim, outcome, verdict)]).states[0]


def succeeded() -> Outcome:
    return Outcome("succeeded", now(), now())


def failed() -> Outcome:
    return stated_failure(TRANSIENT, "ValueError", "no luck", now(), now())
