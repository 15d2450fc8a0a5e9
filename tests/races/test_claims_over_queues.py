"""Claims over the queues of a pool against each other, and against whoever stops one of these queues."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from jobs.models import Effect, Job, JobStatus, Pool, Tenant
from jobs.services.definition import edit_job
from runs.models import LiveRun, Run, WorkerNode
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.services.runs import cancel_run, run_now
from runs.states import LiveState, Trigger
from runs.transitions import cancel_live_runs
from scheduler_project.sdk.ledger.interface import (
    ALL_TENANTS,
    Claim,
    ClaimRequest,
    CompletedClaim,
    given_back,
)
from scheduler_project.sdk.ledger.postgres import SQL, PostgresLedger, claim_values
from tests.races.staging import Session, held_open, result_after
from tests.runs.ledger.claims import SUCCESS, claim_request, ledger, succeeded
from tests.support.factories import (
    make_job,
    make_pool,
    make_run,
    make_suspension,
    make_tenant,
    make_worker,
    now,
    post_job,
)

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


def test_where_the_most_urgent_is_being_cancelled_its_queue_gives_the_next(
    ledger: PostgresLedger, other: Session, pool: Pool, worker: WorkerNode
) -> None:
    """The turn is that of another run, which nobody holds."""
    job = make_job(pool=pool)
    first = make_run(job, LiveState.QUEUED, rank=9)
    urgent = make_run(job, LiveState.QUEUED, rank=1)
    LiveRun.objects.filter(pk=first.pk).update(queued_at=now() - timedelta(seconds=1))
    assert cancel_live_runs(other, [urgent.pk], "enough").ended == [urgent.pk]
    assert [claim.run_id for claim in ledger.claim(over_all(job, worker, 1))] == [first.pk]
    other.commit()


def pause(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(status=JobStatus.PAUSED)


def pause_queue(job: Job) -> None:
    make_suspension(tenant=job.tenant, pool=job.pool, effect=Effect.HOLD)


def close_pool(job: Job) -> None:
    Pool.objects.filter(pk=job.pool_id).update(shared=False)


def unexport(job: Job) -> None:
    Pool.objects.filter(pk=job.pool_id).update(exported_tasks=[])


def lower_limit(job: Job) -> None:
    Tenant.objects.filter(pk=job.tenant_id).update(max_running=0)


def cancel(job: Job) -> None:
    cancel_run(Run.objects.get(live__job=job, live__state=LiveState.QUEUED))


# What stops the first of four queues or all of them, how many of their runs may still be claimed, and how many go back.
# A limit counts what is queued: it was below the old one, and nothing is added until it is below the new one.
STOPS = pytest.mark.parametrize(
    ("stop", "left", "returned"),
    [
        pytest.param(pause, 3, 1, id="job paused"),
        pytest.param(pause_queue, 3, 1, id="queue paused"),
        pytest.param(close_pool, 0, 4, id="pool closed"),
        pytest.param(unexport, 0, 4, id="task unexported"),
        pytest.param(lower_limit, 4, 0, id="limit lowered"),
        pytest.param(cancel, 3, 0, id="run cancelled"),
    ],
)
Stop = Callable[[Job], None]


def claim_all(ledger: PostgresLedger, job: Job, worker: WorkerNode) -> list[Claim]:
    claimed: list[Claim] = []
    while claims := ledger.claim(over_all(job, worker)):
        claimed += claims
    return claimed


def states() -> Counter[str]:
    return Counter(LiveRun.objects.values_list("state", flat=True))


@STOPS
def test_after_a_stop_what_may_go_is_claimed_and_the_rest_goes_back(
    ledger: PostgresLedger, jobs: list[Job], worker: WorkerNode, stop: Stop, left: int, returned: int
) -> None:
    stop(jobs[0])
    assert len(claim_all(ledger, jobs[0], worker)) == left
    assert states() == Counter({LiveState.RUNNING: left, LiveState.READY: returned})


@STOPS
def test_a_stop_while_a_dispatch_marks_holds_for_the_claim(
    ledger: PostgresLedger,
    first: Session,
    jobs: list[Job],
    worker: WorkerNode,
    stop: Stop,
    left: int,
    returned: int,
) -> None:
    """The dispatch has read what the stop changes, and commits its marks after the stop."""
    LiveRun.objects.update(state=LiveState.READY, queued_at=None)
    WorkerNode.objects.filter(pk=worker.pk).update(slots=9)
    first.execute("BEGIN")
    assert dispatch_pool(first, jobs[0].pool_id, now()).queued == 4
    if stop is cancel:
        [run] = LiveRun.objects.filter(job=jobs[0])
        result_after(first, lambda: cancel_run(run.run))
    else:
        stop(jobs[0])
        first.execute("COMMIT")
    assert len(claim_all(ledger, jobs[0], worker)) == left
    assert states() == Counter({LiveState.RUNNING: left, LiveState.READY: returned})


@STOPS
def test_a_stop_that_is_not_committed_makes_no_claim_wait_and_holds_for_the_next(
    ledger: PostgresLedger, jobs: list[Job], worker: WorkerNode, stop: Stop, left: int, returned: int
) -> None:
    with held_open():
        stop(jobs[0])
        claimed = claim_all(ledger, jobs[0], worker)
        # A run that is being cancelled is somebody's; of the others nothing is known yet.
        assert len(claimed) == (3 if stop is cancel else 4)
    for job in jobs[1:] if stop is cancel else jobs:
        make_run(job, LiveState.QUEUED, trigger=Trigger.SCHEDULE)
    ended = ledger.report([CompletedClaim(claim, succeeded(), SUCCESS) for claim in claimed])
    assert set(ended.states) == {"succeeded"}, "what runs is not stopped"
    assert len(claim_all(ledger, jobs[0], worker)) == left
    assert states() == Counter({LiveState.RUNNING: left, LiveState.READY: returned})


@STOPS
def test_a_stop_while_a_batch_runs_holds_for_the_claim_that_comes_with_its_report(
    ledger: PostgresLedger, jobs: list[Job], worker: WorkerNode, stop: Stop, left: int, returned: int
) -> None:
    WorkerNode.objects.filter(pk=worker.pk).update(slots=1)
    claimed = ledger.claim(over_all(jobs[0], worker))
    for job in jobs:
        make_run(job, LiveState.QUEUED, trigger=Trigger.SCHEDULE)
    stop(jobs[0])
    ended = [CompletedClaim(claim, succeeded(), SUCCESS) for claim in claimed]
    result = ledger.report(ended, over_all(jobs[0], worker))
    assert result.states == ["succeeded"] * 4
    assert len(result.claims) == left
    assert states() == Counter({LiveState.RUNNING: left, LiveState.READY: returned})


def test_a_run_that_is_cancelled_while_its_batch_runs_does_not_end_the_others(
    ledger: PostgresLedger, other: Session, jobs: list[Job], worker: WorkerNode
) -> None:
    WorkerNode.objects.filter(pk=worker.pk).update(slots=1)
    request = over_all(jobs[0], worker)
    claims = ledger.claim(request)
    stopped = claims[1]
    assert cancel_live_runs(other, [stopped.run_id], "enough").requested == [stopped.run_id]
    other.commit()
    ends = [CompletedClaim(claim, succeeded(), SUCCESS) for claim in claims if claim is not stopped]
    assert ledger.report([given_back(stopped), *ends]).states == ["cancelled", *["succeeded"] * 3]


class TestLimitsLowered:
    """A limit is kept by dispatch, which counts what is queued: what it marked before is claimed, and then it waits."""

    def lower(self, job: Job, how: str) -> None:
        if how == "tenant":
            Tenant.objects.filter(pk=job.tenant_id).update(max_running=1)
        else:
            edit_job(job, {"max_concurrency": 1})

    @pytest.mark.parametrize("how", ["tenant", "gate"])
    def test_between_mark_and_claim_nothing_is_added_until_it_is_below(
        self, ledger: PostgresLedger, first: Session, how: str
    ) -> None:
        limits = {"tenant": {"max_running": 3}, "gate": {}}
        job = post_job(make_tenant(**limits[how]), max_concurrency=3 if how == "gate" else None)
        beside = make_job(make_tenant(), job.pool)
        worker = make_worker(job.pool, slots=20)
        for _ in range(5):
            run_now(job, request=uuid4().bytes)
        make_run(beside)
        assert dispatch_pool(first, job.pool_id, now()).queued == 4
        self.lower(job, how)
        claims = claim_all(ledger, job, worker)
        assert Counter(claim.job_id for claim in claims) == {job.pk: 3, beside.pk: 1}
        ours = [claim for claim in claims if claim.job_id == job.pk]
        for claim in ours:
            run_now(job, request=uuid4().bytes)
            assert dispatch_pool(first, job.pool_id, now()).queued == 0
            ledger.report([CompletedClaim(claim, succeeded(), SUCCESS)])
        make_run(beside)
        assert dispatch_pool(first, job.pool_id, now()).queued == 2, "one of each"
        assert LiveRun.objects.filter(job=job, state=LiveState.QUEUED).count() == 1


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
