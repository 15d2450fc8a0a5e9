"""Claims over the queues of a pool against each other, and against whoever stops one of these queues."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from jobs.models import Job, JobStatus, Pool
from runs.models import LiveRun, WorkerNode
from runs.states import LiveState, Trigger
from runs.transitions import cancel_live_runs
from scheduler_project.sdk.ledger.interface import ALL_TENANTS, ClaimRequest, CompletedClaim
from scheduler_project.sdk.ledger.postgres import SQL, PostgresLedger, claim_values
from tests.races.staging import Session
from tests.runs.ledger.claims import SUCCESS, claim_request, ledger, succeeded
from tests.support.factories import make_job, make_pool, make_run, make_tenant, make_worker, now

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def pool() -> Pool:
    return make_pool()


@pytest.fixture
def worker(pool: Pool) -> WorkerNode:
    return make_worker(pool, slots=4)


@pytest.fixture
def jobs(pool: Pool) -> list[Job]:
    """Make a job of each of four tenants, with a run that is queued."""
    jobs = [make_job(make_tenant(), pool) for _ in range(4)]
    for job in jobs:
        make_run(job, LiveState.QUEUED, trigger=Trigger.SCHEDULE)
    return jobs


def over_all(
    job: Job, worker: WorkerNode, most: int = 32, expected_ms: dict[str, int] | None = None
) -> ClaimRequest:
    request = claim_request(job, most, worker)
    return replace(request, queue=replace(request.queue, tenant_id=ALL_TENANTS), expected_ms=expected_ms)


def test_claims_at_once_leave_each_other_what_they_do_not_take(
    ledger: PostgresLedger, other: Session, jobs: list[Job], worker: WorkerNode
) -> None:
    """Four slots with a wake-up each, and four runs of unknown length: one that finds none is idle for a second."""
    for _ in range(3):
        request = over_all(jobs[0], worker, expected_ms={})
        assert len(other.execute(SQL["claim"], claim_values(request)).fetchall()) == 1
    assert len(ledger.claim(over_all(jobs[0], worker, expected_ms={}))) == 1
    other.commit()
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 4


def test_the_turns_of_two_claims_differ_when_one_takes_what_is_more_urgent(
    ledger: PostgresLedger, other: Session, pool: Pool, worker: WorkerNode
) -> None:
    job = make_job(pool=pool)
    first = make_run(job, LiveState.QUEUED, rank=9)
    urgent = make_run(job, LiveState.QUEUED, rank=1)
    LiveRun.objects.filter(pk=first.pk).update(queued_at=now() - timedelta(seconds=1))
    rows = other.execute(SQL["claim"], claim_values(over_all(job, worker, 1))).fetchall()
    assert [row["run_id"] if isinstance(row, dict) else row[0] for row in rows] == [urgent.pk]
    # The other holds the turn of the first and the row of the urgent one: nothing is left for now.
    assert ledger.claim(over_all(job, worker, 1)) == []
    other.commit()
    assert [claim.run_id for claim in ledger.claim(over_all(job, worker, 1))] == [first.pk]


def test_what_is_being_cancelled_is_left_out_and_others_are_taken(
    ledger: PostgresLedger, other: Session, jobs: list[Job], worker: WorkerNode
) -> None:
    [run] = LiveRun.objects.filter(job=jobs[0])
    assert cancel_live_runs(other, [run.pk], "enough").ended == [run.pk]
    claims = ledger.claim(over_all(jobs[0], worker, 4))
    assert {claim.job_id for claim in claims} <= {job.pk for job in jobs[1:]} and claims
    other.commit()


def pause(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(status=JobStatus.PAUSED)


def close_pool(job: Job) -> None:
    Pool.objects.filter(pk=job.pool_id).update(shared=False)


def unexport(job: Job) -> None:
    Pool.objects.filter(pk=job.pool_id).update(exported_tasks=[])


@pytest.mark.parametrize(
    ("stop", "left"), [(pause, 3), (close_pool, 0), (unexport, 0)], ids=["pause", "pool", "task"]
)
def test_what_may_not_go_any_more_goes_back_and_the_rest_is_claimed(
    ledger: PostgresLedger, jobs: list[Job], worker: WorkerNode, stop: Callable[[Job], None], left: int
) -> None:
    stop(jobs[0])
    claimed = []
    while claims := ledger.claim(over_all(jobs[0], worker)):
        claimed += claims
    assert len(claimed) == left
    states = LiveRun.objects.exclude(state=LiveState.RUNNING).values_list("state", flat=True)
    assert list(states) == [LiveState.READY] * (4 - left)


def test_a_worker_that_is_expired_before_its_claim_gets_nothing(
    ledger: PostgresLedger, jobs: list[Job], worker: WorkerNode
) -> None:
    request = over_all(jobs[0], worker)
    WorkerNode.objects.filter(pk=worker.pk).update(last_beat_at=now() - timedelta(hours=1))
    assert ledger.claim(request) == []
    assert LiveRun.objects.filter(state=LiveState.QUEUED).count() == 4


def test_an_answer_that_is_lost_with_a_report_is_found_by_its_tokens(
    ledger: PostgresLedger, jobs: list[Job], worker: WorkerNode
) -> None:
    WorkerNode.objects.filter(pk=worker.pk).update(slots=1)
    first = ledger.claim(over_all(jobs[0], worker, 2))
    request = over_all(jobs[0], worker, 2)
    result = ledger.report([CompletedClaim(claim, succeeded(), SUCCESS) for claim in first], request)
    assert len(result.claims) == 2
    assert ledger.claim(request, again=True) == result.claims
    ledger.report([CompletedClaim(result.claims[0], succeeded(), SUCCESS)])
    assert ledger.claim(request, again=True) == result.claims[1:]
