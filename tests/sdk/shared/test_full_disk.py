"""The disk of the spool is full: nothing that was done is lost, and nothing runs twice."""

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler_project.sdk.errors import LedgerUnavailable
from scheduler_project.sdk.guard.delivery import Delivery
from scheduler_project.sdk.guard.guard import Guard
from scheduler_project.sdk.ledger.interface import (
    ClaimRequest,
    CompletedClaim,
    ReportResult,
    WorkerInfo,
    base_token,
    token_at,
)
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared import spool as spool_module
from scheduler_project.sdk.shared.claim_record import pack_claim
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slot_record import Slot
from scheduler_project.sdk.shared.spool import PendingReport, unconfirmed_claim
from tests.sdk.execution.test_claim_loop import StagedLoop, executed, staged
from tests.sdk.fake_ledger import QUEUE, FakeLedger
from tests.sdk.guard.test_slot_watch import at_work_on
from tests.sdk.stage import gone
from tests.sdk.targets.test_celery_task import make_claim
from tests.support.waiting import wait_until

__all__ = ["staged"]
SLOTS = 2


class Disk:
    """Takes `room` more files of the spool."""

    def __init__(self) -> None:
        self.room = 0
        self._packed = spool_module._packed

    def packed(self, pending: PendingReport) -> dict[str, Any]:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._packed(pending)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(spool_module, "_packed", disk.packed)
    return disk


@pytest.fixture
def ledger(tmp_path: Path) -> FakeLedger:
    return FakeLedger(str(tmp_path / "ledger"))


@pytest.fixture
def runtime(tmp_path: Path, ledger: FakeLedger) -> Runtime:
    config = Config("w", "host", "default", "", SLOTS, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    runtime.table.header.fence_at = processes.boottime() + 600
    return runtime


@pytest.fixture
def guard(runtime: Runtime) -> Guard:
    guard = Guard(runtime)
    guard.heartbeat.must_register = False
    return guard


@pytest.fixture
def fork_owner(runtime: Runtime) -> Iterator[Callable[[UUID], int]]:
    """Fork processes that each work on one claim."""
    pids = []

    def fork(token: UUID) -> int:
        ready, done = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                at_work_on(runtime.table, token)
                os.write(done, b"x")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        pids.append(pid)
        os.close(done)
        assert os.read(ready, 1) == b"x"
        os.close(ready)
        return pid

    yield fork
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            continue


def batch_of_four(runtime: Runtime) -> tuple[OwnedSlot, UUID, Slot]:
    """Take a slot with four claims: the first is at work, three wait."""
    owned_slot, base = OwnedSlot.take(runtime.table), base_token()
    assert owned_slot is not None
    owned_slot.request(base, 4)
    owned_slot.receive(base, [pack_claim(make_claim({}, token=token_at(base, nth))) for nth in range(4)])
    assert owned_slot.begin(0, 1, processes.boottime() + 60)
    slot = runtime.table.read(0)
    assert slot is not None
    return owned_slot, base, slot


def test_what_is_given_back_of_a_batch_is_not_begun_when_the_rest_found_no_room(
    runtime: Runtime, guard: Guard, disk: Disk
) -> None:
    owned_slot, base, slot = batch_of_four(runtime)
    disk.room = 1
    with pytest.raises(OSError):
        guard.slot_watch.give_back_waiting(slot, slot.since + 1)
    assert runtime.spool.tokens() == [token_at(base, 1)]
    begun = [nth for nth in (1, 2, 3) if owned_slot.begin(nth, 1, processes.boottime() + 60)]
    assert begun == [2, 3]


def test_what_a_dying_guard_gave_back_is_not_begun(runtime: Runtime) -> None:
    """It was killed between the two writes."""
    owned_slot, base, _ = batch_of_four(runtime)
    runtime.spool.put(PendingReport(make_claim({}, token=token_at(base, 1))))

    def begins(nth: int) -> bool:
        deadline = processes.boottime() + 60
        return owned_slot.begin(nth, 1, deadline, lambda: runtime.spool.holds(token_at(base, nth)))

    assert [nth for nth in (1, 2, 3) if begins(nth)] == [2, 3]


def test_a_slot_that_cannot_be_settled_keeps_no_other_from_its_limits(
    runtime: Runtime, guard: Guard, disk: Disk, fork_owner: Callable[[UUID], int]
) -> None:
    dead, late = fork_owner(uuid4()), fork_owner(token := uuid4())
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)
    guard.heartbeat.last_response.gone = frozenset({token})
    guard.try_tick()
    wait_until(lambda: gone(late), 10, "the end of whose run another worker may have by now")


def test_the_delivery_goes_on_when_the_disk_does(runtime: Runtime, ledger: FakeLedger, disk: Disk) -> None:
    incarnation, base = uuid4(), base_token()
    ledger.register(WorkerInfo(incarnation, "w", "default", "host", 1, 1, ["w.runs"]))
    run = ledger.add_run("w.runs")
    assert ledger.claim(ClaimRequest(incarnation, base, QUEUE, ["w.runs"], 1))
    runtime.spool.put_unconfirmed(unconfirmed_claim(incarnation, base, 1))
    delivery = Delivery(runtime, ledger)
    assert not delivery.deliver_all()
    assert runtime.spool.unconfirmed(), "they are still held"
    disk.room = 1
    assert delivery.deliver_all()
    assert [end["kind"] for end in ledger.ends(run)] == ["given_back"]


def test_what_succeeded_is_reported_by_the_guard_when_its_process_could_not_spool_it(
    staged: StagedLoop, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = staged.ledger.add_run("w.runs")

    def away(ended: Sequence[CompletedClaim], wanted: ClaimRequest | None = None) -> ReportResult:
        raise LedgerUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr(staged.ledger, "report", away)
        with pytest.raises(OSError):
            staged.work()
    assert executed == [str(run)]
    disk.room = 1
    guard = Guard(staged.runtime)
    guard.heartbeat.must_register = False
    guard.tick()
    Delivery(staged.runtime, staged.ledger).deliver_all()
    assert [end["kind"] for end in staged.ledger.ends(run)] == ["succeeded"]
    assert staged.runtime.spool.tokens() == []
