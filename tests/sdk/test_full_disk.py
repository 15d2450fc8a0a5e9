"""The disk of the spool is full: nothing that was done is lost, and nothing runs twice."""

import errno
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from scheduler_project.sdk import processes
from scheduler_project.sdk import spool as spool_module
from scheduler_project.sdk.claim_details import details_of
from scheduler_project.sdk.delivery import Delivery
from scheduler_project.sdk.guard import Guard
from scheduler_project.sdk.hand import Hand
from scheduler_project.sdk.ledger import (
    Ended,
    LedgerUnavailable,
    Told,
    Wanted,
    WorkerInfo,
    base_token,
    token_at,
)
from scheduler_project.sdk.runtime import Config, Runtime
from scheduler_project.sdk.slots import Slot
from scheduler_project.sdk.spool import Untold, unheard_now
from tests.sdk.fake_ledger import LANE, FakeLedger
from tests.sdk.stage import gone
from tests.sdk.test_celery_target import make_claim
from tests.sdk.test_guard import at_work_on
from tests.sdk.test_work import Bench, bench, executed
from tests.waiting import wait_until

__all__ = ["bench"]
SLOTS = 2


class Disk:
    """Takes `room` more files of the spool."""

    def __init__(self) -> None:
        self.room = 0
        self._packed = spool_module._packed

    def packed(self, untold: Untold) -> dict[str, Any]:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._packed(untold)


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
    runtime.table.fence_at = processes.boottime() + 600
    return runtime


@pytest.fixture
def guard(runtime: Runtime) -> Guard:
    guard = Guard(runtime)
    guard.heartbeat.begin_anew = False
    return guard


@pytest.fixture
def fork_owner(runtime: Runtime) -> Iterator[Callable[[UUID], int]]:
    """Processes that each work on one claim."""
    pids = []

    def fork(token: UUID) -> int:
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                at_work_on(runtime.table, token)
                os.write(told, b"x")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        pids.append(pid)
        os.close(told)
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


def batch_of_four(runtime: Runtime) -> tuple[Hand, UUID, Slot]:
    """The first is at work, three wait."""
    hand, base = Hand.take(runtime.table), base_token()
    assert hand is not None
    hand.ask(base, 4)
    hand.receive(base, [details_of(make_claim({}, token=token_at(base, nth))) for nth in range(4)])
    assert hand.begin(0, 1, processes.boottime() + 60)
    slot = runtime.table.read(0)
    assert slot is not None
    return hand, base, slot


def test_what_is_given_back_of_a_batch_is_not_begun_when_the_rest_found_no_room(
    runtime: Runtime, guard: Guard, disk: Disk
) -> None:
    hand, base, slot = batch_of_four(runtime)
    disk.room = 1
    with pytest.raises(OSError):
        guard.relieve(slot, slot.since + 1)
    assert runtime.spool.tokens() == [token_at(base, 1)]
    begun = [nth for nth in (1, 2, 3) if hand.begin(nth, 1, processes.boottime() + 60)]
    assert begun == [2, 3]


def test_what_a_guard_gave_back_with_its_last_breath_is_not_begun(runtime: Runtime) -> None:
    """It was killed between the two writes."""
    hand, base, _ = batch_of_four(runtime)
    runtime.spool.put(Untold(make_claim({}, token=token_at(base, 1))))

    def begins(nth: int) -> bool:
        deadline = processes.boottime() + 60
        return hand.begin(nth, 1, deadline, lambda: runtime.spool.holds(token_at(base, nth)))

    assert [nth for nth in (1, 2, 3) if begins(nth)] == [2, 3]


def test_a_slot_that_cannot_be_settled_keeps_no_other_from_its_limits(
    runtime: Runtime, guard: Guard, disk: Disk, fork_owner: Callable[[UUID], int]
) -> None:
    dead, late = fork_owner(uuid4()), fork_owner(token := uuid4())
    os.kill(dead, signal.SIGKILL)
    os.waitpid(dead, 0)
    guard.heartbeat.heard.gone = frozenset({token})
    guard.try_tick()
    wait_until(lambda: gone(late), 10, "the end of whose run somebody else may have by now")


def test_the_delivery_goes_on_when_the_disk_does(runtime: Runtime, ledger: FakeLedger, disk: Disk) -> None:
    incarnation, base = uuid4(), base_token()
    ledger.register(WorkerInfo(incarnation, "w", "default", "host", 1, 1, ["w.runs"]))
    run = ledger.add_run("w.runs")
    assert ledger.claim(Wanted(incarnation, base, LANE, ["w.runs"], 1))
    runtime.spool.put_unheard(unheard_now(incarnation, base, 1))
    delivery = Delivery(runtime, ledger)
    assert not delivery.deliver_all()
    assert runtime.spool.unheard(), "it is still in hand"
    disk.room = 1
    assert delivery.deliver_all()
    assert [end["kind"] for end in ledger.ends(run)] == ["given_back"]


def test_what_succeeded_is_told_by_the_guard_when_its_process_could_not_spool_it(
    bench: Bench, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench.ledger.add_run("w.runs")

    def away(ended: Sequence[Ended], wanted: Wanted | None = None) -> Told:
        raise LedgerUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr(bench.ledger, "report", away)
        with pytest.raises(OSError):
            bench.work()
    assert executed == [str(run)]
    disk.room = 1
    guard = Guard(bench.runtime)
    guard.heartbeat.begin_anew = False
    guard.tick()
    Delivery(bench.runtime, bench.ledger).deliver_all()
    assert [end["kind"] for end in bench.ledger.ends(run)] == ["succeeded"]
    assert bench.runtime.spool.tokens() == []
