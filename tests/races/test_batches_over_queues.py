"""A batch of several queues in a claim loop on a real ledger: the fence closes before it begins, or its answer is lost.

The slots and the spool are real. The guard is its delivery, which gives back and reports what lies in the spool.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from celery import Celery

from jobs.models import Job, Pool
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.states import LiveState
from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.execution import batching, claim_loop
from scheduler_project.sdk.execution.claim_loop import ClaimLoop
from scheduler_project.sdk.guard.delivery import Delivery
from scheduler_project.sdk.guard.held_claims import held_claims
from scheduler_project.sdk.ledger.interface import (
    ALL_TENANTS,
    Claim,
    ClaimRequest,
    WorkQueue,
    base_token,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.targets.celery_task import CeleryTarget
from scheduler_project.sdk.targets.registry import Targets
from tests.races.staging import Session, dsn
from tests.support.factories import TASK, make_job, make_pool, make_run, make_tenant, make_worker, now

pytestmark = pytest.mark.django_db(transaction=True)
TENANTS = 4
# However slow the machine, nothing of a batch is given back for its length.
AMPLE_SECONDS = 600.0

app = Celery("work", broker="memory://", set_as_current=False)
# Tasks of other tests' apps come with this, one of them of this name.
app.finalize()
app.tasks.pop(TASK, None)
executed: list[str] = []
after_each: list[Callable[[], None]] = []


@app.task(name=TASK, bind=True, shared=False)
def runs(self: Any) -> None:
    executed.append(self.request.id)
    for act in after_each:
        act()


class StagedLedger(PostgresLedger):
    """Something happens when claims were made, before the worker reads the answer."""

    after_claim: Callable[[list[Claim]], None] = staticmethod(lambda claims: None)

    def claim(self, request: ClaimRequest, again: bool = False) -> list[Claim]:
        claims = super().claim(request, again)
        self.after_claim(claims)
        return claims


class StagedWorker:
    def __init__(self, ledger: StagedLedger, node: WorkerNode, folder: Path) -> None:
        config = Config("w", "host", node.pool.slug, "", 1, "", f"file://{folder}/logs", [TASK])
        self.ledger, self.node = ledger, node
        self.runtime = Runtime.create(folder / "spool", config)
        self.runtime.ledger = lambda: ledger  # type: ignore[method-assign]
        self.header = self.runtime.table.header
        self.header.incarnation = node.incarnation
        self.header.fence_at = processes.boottime() + 600
        targets = Targets(app)
        targets.add("celery", CeleryTarget(app))
        self.loop = ClaimLoop(self.runtime, targets)
        self.delivery = Delivery(self.runtime, ledger)

    def work(self) -> int:
        return self.loop.work_on_queue(WorkQueue(0, self.node.pool_id, ALL_TENANTS, ""), 60.0)

    def close_fence(self, *_: object) -> None:
        self.header.fence_at = 0.0

    def run_at_work(self) -> str:
        """Read the slot as the guard does."""
        slot = self.runtime.table.read(0)
        assert slot is not None
        return str((self.runtime.table.claim(slot) or {}).get("run_id"))

    def held(self) -> int:
        return len(held_claims(self.runtime).tokens)


@pytest.fixture
def jobs() -> list[Job]:
    """Make a job of each of four tenants, with a run that is queued."""
    pool = make_pool()
    jobs = [make_job(make_tenant(), pool) for _ in range(TENANTS)]
    for job in jobs:
        make_run(job, LiveState.QUEUED)
    return jobs


@pytest.fixture
def staged(jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StagedWorker]:
    monkeypatch.setattr(claim_loop, "PAUSE", 0.01)
    monkeypatch.setattr(batching, "BATCH_SECONDS", AMPLE_SECONDS)
    executed.clear()
    after_each.clear()
    ledger = StagedLedger(dsn())
    staged = StagedWorker(ledger, make_worker(jobs[0].pool, slots=1), tmp_path)
    for job in jobs:
        # So that they are claimed together.
        staged.runtime.lengths.note(job.tenant_id, 0.001)
    yield staged
    ledger.close()


def attempts() -> list[tuple[str, str]]:
    return sorted(Attempt.objects.values_list("outcome", "next_state"))


def running() -> dict[UUID, UUID | None]:
    return dict(LiveRun.objects.filter(state=LiveState.RUNNING).values_list("run_id", "claim_token"))


def untried() -> int:
    return LiveRun.objects.filter(state=LiveState.READY, attempt=0, losses=0, worker=None).count()


def claimed_elsewhere(pool: Pool, other: Session, claims: list[Claim]) -> list[Claim]:
    """Take claims from a worker as recovery does, and have another worker claim their runs."""
    fail_claims(other, {claim.run_id: claim.claim_seq for claim in claims}, "lost")
    other.commit()
    lost = LiveRun.objects.filter(pk__in=[claim.run_id for claim in claims])
    lost.update(state=LiveState.READY, wake_at=None)
    lost.update(state=LiveState.QUEUED, queued_at=now())
    node, queue = make_worker(pool, slots=1), WorkQueue(0, pool.pk, ALL_TENANTS, "")
    request = ClaimRequest(node.incarnation, base_token(), queue, [TASK], len(claims))
    with closing(PostgresLedger(dsn())) as ledger:
        again = ledger.claim(request)
    assert {claim.run_id for claim in again} == {claim.run_id for claim in claims}
    return again


class TestAFenceBetweenClaimAndStart:
    def test_none_of_the_batch_starts_and_all_go_back(self, staged: StagedWorker) -> None:
        staged.ledger.after_claim = staged.close_fence
        assert (staged.work(), executed) == (0, [])
        assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == TENANTS
        assert staged.held() == TENANTS, "or recovery would count a loss of each"
        assert staged.delivery.deliver_all()
        assert (untried(), staged.held()) == (TENANTS, 0)
        assert staged.delivery.deliver_all()
        assert attempts() == [("given_back", "ready")] * TENANTS

    def test_what_others_have_claimed_meanwhile_stays_theirs(
        self, staged: StagedWorker, other: Session
    ) -> None:
        made: list[Claim] = []

        def close(claims: list[Claim]) -> None:
            staged.close_fence()
            made.extend(claims)

        staged.ledger.after_claim = close
        staged.work()
        elsewhere = claimed_elsewhere(staged.node.pool, other, made[:2])
        assert staged.delivery.deliver_all()
        assert running() == {claim.run_id: claim.token for claim in elsewhere}
        assert untried() == TENANTS - 2
        assert attempts() == [("given_back", "ready")] * 2 + [("lost", "delayed")] * 2

    def test_in_the_middle_of_the_batch_the_rest_goes_back(self, staged: StagedWorker) -> None:
        after_each.append(lambda: staged.close_fence() if len(executed) == 2 else None)
        assert staged.work() == 2
        assert staged.delivery.deliver_all()
        ended = Run.objects.filter(state="succeeded").values_list("pk", flat=True)
        assert sorted(map(str, ended)) == sorted(executed)
        assert (len(executed), untried(), staged.held()) == (2, TENANTS - 2, 0)
        assert attempts() == [("given_back", "ready")] * 2 + [("succeeded", "succeeded")] * 2

    def test_a_worker_that_begins_anew_before_it_reads_the_answer_starts_none(
        self, staged: StagedWorker
    ) -> None:
        """The old incarnation may have been expired, and the new one holds none of its claims."""

        def begin_anew(_: list[Claim]) -> None:
            staged.header.incarnation = make_worker(staged.node.pool).incarnation

        staged.ledger.after_claim = begin_anew
        assert (staged.work(), executed) == (0, [])
        assert staged.delivery.deliver_all()
        assert (untried(), staged.held()) == (TENANTS, 0)


def test_an_answer_that_is_asked_again_when_half_of_the_batch_has_ended_starts_the_other_half(
    staged: StagedWorker, other: Session
) -> None:
    """Recovery and another worker were faster than the second request."""
    elsewhere: list[Claim] = []

    def lose_the_first(claims: list[Claim]) -> None:
        if not elsewhere:
            elsewhere.extend(claimed_elsewhere(staged.node.pool, other, claims[:2]))
            raise LedgerUnavailable("the response was lost")

    at_work: list[str] = []
    after_each.append(lambda: at_work.append(staged.run_at_work()))
    staged.ledger.after_claim = lose_the_first
    assert staged.work() == TENANTS - 2
    assert at_work == executed, "what the guard reads of the slot"
    theirs = {str(claim.run_id) for claim in elsewhere}
    assert len(executed) == len(set(executed)) == TENANTS - 2 and not theirs & set(executed)
    assert running() == {claim.run_id: claim.token for claim in elsewhere}
    assert Run.objects.filter(state="succeeded").count() == TENANTS - 2
    assert staged.delivery.deliver_all() and not staged.held()
