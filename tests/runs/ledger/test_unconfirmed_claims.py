"""Claims that the ledger made for a child which was killed before it read the answer: none of them was begun."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.models import Job
from runs.models import Attempt, LiveRun, Run, WorkerNode
from runs.states import LiveState
from scheduler_project.sdk.guard.delivery import Delivery
from scheduler_project.sdk.guard.guard import Guard
from scheduler_project.sdk.guard.held_claims import held_claims
from scheduler_project.sdk.ledger.interface import Claim, ClaimRequest, CompletedClaim, Ledger
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared import spool
from scheduler_project.sdk.shared.claim_record import pack_claim, pack_completion_for_slot
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from tests.runs.ledger.claims import SUCCESS, claim_request, succeeded
from tests.runs.ledger.claims import either_ledger as ledger
from tests.sdk.fake_ledger import FakeLedger
from tests.sdk.stage import gone
from tests.support.factories import TASK, make_job, make_run, make_worker
from tests.support.waiting import wait_until

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)


class Worker:
    """A slot, a guard that is asked to look, and children that carry out one step and are killed."""

    def __init__(self, ledger: Ledger, folder: Path, job: Job, node: WorkerNode) -> None:
        self.ledger, self.job, self.node = ledger, job, node
        url = FakeLedger(str(folder / "unused")).url
        config = Config("w", "host", job.pool.slug, "", 1, url, f"file://{folder}/logs", [TASK])
        self.runtime = Runtime.create(folder / "spool", config)
        self.runtime.table.header.fence_at = processes.boottime() + 600
        self.runtime.table.header.incarnation = node.incarnation
        self.guard = Guard(self.runtime)
        self.guard.heartbeat.must_register = False
        self.delivery = Delivery(self.runtime, ledger)

    def wanted(self, most: int) -> ClaimRequest:
        return claim_request(self.job, most, self.node)

    def child(self, steps: Callable[[OwnedSlot], object]) -> None:
        pid = os.fork()
        if not pid:
            try:
                owned_slot = OwnedSlot.take(self.runtime.table)
                assert owned_slot is not None
                steps(owned_slot)
            finally:
                os.kill(os.getpid(), signal.SIGKILL)
        wait_until(lambda: gone(pid), 20, "a dead child")
        os.waitpid(pid, 0)

    def settle(self) -> bool:
        self.guard.tick()
        return self.delivery.deliver_all()


@pytest.fixture
def worker(ledger: Ledger, tmp_path: Path) -> Iterator[Worker]:
    job = make_job()
    yield Worker(ledger, tmp_path, job, make_worker(job.pool, slots=1))


def queued(job: Job, count: int) -> list[LiveRun]:
    return [make_run(job, LiveState.QUEUED, rank=rank) for rank in range(count)]


def assert_untried(runs: list[LiveRun], attempts: int = 1) -> None:
    for run in runs:
        before = (run.rank, run.available_at, run.queued_at)
        run.refresh_from_db()
        assert (run.state, run.attempt, run.losses) == (LiveState.READY, 0, 0)
        assert (run.rank, run.available_at, run.queued_at) == before, (
            "it keeps its place, and waits for nothing"
        )
        outcomes = Attempt.objects.filter(run=run.run_id).values_list("outcome", "next_state")
        assert list(outcomes) == [("given_back", "ready")] * attempts


def ask_for(worker: Worker, most: int) -> Callable[[OwnedSlot], list[Claim]]:
    def claims_of(owned_slot: OwnedSlot) -> list[Claim]:
        wanted = worker.wanted(most)
        owned_slot.request(wanted.token, wanted.limit, wanted.incarnation)
        return worker.ledger.claim(wanted)

    return claims_of


def test_what_was_granted_with_the_last_report_goes_back_at_once(worker: Worker) -> None:
    runs = queued(worker.job, 33)
    # Its connection, where the ledger keeps one by tenant, is known before the child is forked.
    [first] = worker.ledger.claim(worker.wanted(1))

    def report_and_request(owned_slot: OwnedSlot) -> None:
        owned_slot.receive(first.token, [pack_claim(first)])
        owned_slot.begin(0, first.claim_seq, processes.boottime() + 60)
        owned_slot.complete(0, pack_completion_for_slot(succeeded(), SUCCESS))
        following = worker.wanted(32)
        owned_slot.start_report(following.token, following.limit, following.incarnation)
        worker.ledger.report([CompletedClaim(first, succeeded(), SUCCESS)], following)

    worker.child(report_and_request)
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 32
    assert worker.settle()
    assert_untried(runs[1:])
    assert [one.outcome for one in Attempt.objects.filter(run=first.run_id)] == ["succeeded"]
    assert Run.objects.get(pk=first.run_id).state == "succeeded"
    assert worker.settle(), "and once"
    assert_untried(runs[1:])


def test_what_was_granted_to_a_first_ask_goes_back(worker: Worker) -> None:
    runs = queued(worker.job, 3)
    worker.ledger.claim(worker.wanted(1))
    worker.child(ask_for(worker, 2))
    assert LiveRun.objects.filter(state=LiveState.RUNNING).count() == 3
    assert worker.settle()
    assert_untried(runs[1:])
    runs[0].refresh_from_db()
    assert runs[0].state == LiveState.RUNNING, "another claim is not touched"


def test_of_a_batch_that_was_begun_only_the_first_counts(worker: Worker) -> None:
    runs = queued(worker.job, 3)
    claims = worker.ledger.claim(worker.wanted(3))

    def begin(owned_slot: OwnedSlot) -> None:
        owned_slot.receive(claims[0].token, [pack_claim(claim) for claim in claims])
        owned_slot.begin(0, claims[0].claim_seq, processes.boottime() + 60)

    worker.child(begin)
    assert worker.settle()
    assert_untried(runs[1:])
    runs[0].refresh_from_db()
    assert (runs[0].state, runs[0].losses) == (LiveState.DELAYED, 1)


def test_a_request_that_never_arrived_is_forgotten_and_claims_nothing(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.ledger.claim(worker.wanted(1))
    runs = queued(worker.job, 2)
    wanted = worker.wanted(2)
    worker.child(lambda owned_slot: owned_slot.request(wanted.token, wanted.limit, wanted.incarnation))
    assert not worker.settle()
    assert held_claims(worker.runtime).tokens == set(wanted.tokens), "it may still be under way"
    monkeypatch.setattr(spool, "REQUEST_SECONDS", -1000.0)
    assert worker.settle()
    assert not held_claims(worker.runtime).tokens
    assert [LiveRun.objects.get(pk=run.pk).state for run in runs] == [LiveState.QUEUED] * 2
