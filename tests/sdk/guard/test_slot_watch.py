"""The guard's decisions about one slot, staged: a process owns it, and the test sees whom the guard kills."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from scheduler_project.sdk.guard.guard import Guard
from scheduler_project.sdk.ledger.interface import base_token, token_at
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.retries import Verdict
from scheduler_project.sdk.shared.claim_record import pack_claim
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slot_record import FREE, HARD, HELD, NOT_KILLED, Slot
from scheduler_project.sdk.shared.slots import COMPLETIONS_SIZE, SlotTable
from scheduler_project.sdk.shared.spool import PendingReport
from tests.sdk.fake_ledger import FakeLedger
from tests.sdk.stage import gone
from tests.sdk.targets.test_celery_task import make_claim
from tests.support.waiting import wait_until


def at_work_on(table: SlotTable, token: UUID, seconds: float = 60) -> OwnedSlot:
    """Take a slot in this process for one claim, with so many seconds for it."""
    owned_slot = OwnedSlot.take(table)
    assert owned_slot is not None
    owned_slot.request(token)
    owned_slot.receive(token, [pack_claim(make_claim({}, token=token))])
    owned_slot.begin(0, 1, processes.boottime() + seconds)
    return owned_slot


class Owner:
    """A child that holds one claim, and takes the next on a signal."""

    def __init__(self, runtime: Runtime, first: UUID, second: UUID) -> None:
        ready, done = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                signal.signal(signal.SIGUSR1, lambda *_: self.hold(second))
                self.owned_slot = OwnedSlot.take(runtime.table)
                self.hold(first)
                os.write(done, b"x")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(done)
        assert os.read(ready, 1) == b"x"
        os.close(ready)

    def hold(self, token: UUID) -> None:
        assert self.owned_slot is not None
        self.owned_slot.request(token)
        self.owned_slot.receive(token, [pack_claim(make_claim({}, token=token))])
        self.owned_slot.begin(0, 1, processes.boottime() + 60)

    def next_run(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)


class WatchedSlot:
    def __init__(self, folder: Path) -> None:
        self.ledger = FakeLedger(str(folder / "ledger"))
        config = Config("w", "host", "default", "", 1, self.ledger.url, f"file://{folder}/logs", [])
        self.runtime = Runtime.create(folder / "spool", config)
        self.runtime.table.header.fence_at = processes.boottime() + 60
        self.guard = Guard(self.runtime)
        self.guard.heartbeat.must_register = False
        self.first, self.second = uuid4(), uuid4()
        self.owner = Owner(self.runtime, self.first, self.second)

    def slot(self) -> Slot:
        slot = self.runtime.table.read(0)
        assert slot is not None
        return slot


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[WatchedSlot]:
    watched = WatchedSlot(tmp_path)
    yield watched
    os.kill(watched.owner.pid, signal.SIGKILL)
    os.waitpid(watched.owner.pid, 0)


def test_a_kill_never_hits_the_next_run(watched: WatchedSlot) -> None:
    seen = watched.slot()
    watched.owner.next_run()
    wait_until(lambda: watched.slot().token == watched.second, 15, "the next run")
    watched.guard.slot_watch.kill(seen, "gone", HARD)
    assert not gone(watched.owner.pid)
    assert watched.runtime.table.records[0].kill_request.stage == NOT_KILLED


def test_a_child_in_the_middle_of_a_hand_over_is_left_for_the_next_look(watched: WatchedSlot) -> None:
    table, seen = watched.runtime.table, watched.slot()
    held, release = os.pipe()
    between = os.fork()
    if not between:
        with table.hand_over(0):
            os.write(release, b"x")
            signal.pause()
    try:
        assert os.read(held, 1) == b"x"
        watched.guard.slot_watch.kill(seen, "gone", HARD)
        assert not gone(watched.owner.pid)
    finally:
        os.kill(between, signal.SIGKILL)
        os.waitpid(between, 0)
    watched.guard.slot_watch.kill(seen, "gone", HARD)
    wait_until(lambda: gone(watched.owner.pid), 15, "its end")


def test_a_token_only_requested_when_the_beat_was_made_is_not_gone(watched: WatchedSlot) -> None:
    heartbeat = watched.guard.heartbeat
    heartbeat.last_response.gone = frozenset()
    watched.guard.tick()
    assert not gone(watched.owner.pid)
    heartbeat.last_response.gone = frozenset({watched.first})
    watched.guard.tick()
    wait_until(lambda: gone(watched.owner.pid), 15, "its end")


def test_behind_the_fence_even_an_unreadable_slot_is_killed(watched: WatchedSlot) -> None:
    table = watched.runtime.table
    os.kill(watched.owner.pid, signal.SIGSTOP)
    with table.records[0].writing():
        assert table.read(0) is None
        table.header.fence_at = 0.0
        watched.guard.slot_watch.look_at(0, processes.boottime())
    wait_until(lambda: gone(watched.owner.pid), 15, "its end")


def test_a_dead_owner_is_reported_once_and_its_slot_is_free(watched: WatchedSlot) -> None:
    os.kill(watched.owner.pid, signal.SIGKILL)
    wait_until(lambda: gone(watched.owner.pid), 15, "its end")
    watched.guard.tick()
    assert watched.runtime.table.states() == [FREE]
    assert watched.runtime.spool.tokens() == [watched.first]
    pending = watched.runtime.spool.get(watched.first)
    assert pending is not None and pending.outcome is not None
    assert (pending.outcome.error_class, pending.log_is_open) == ("worker_lost", True)


def test_a_living_owner_of_a_slot_is_left_alone(watched: WatchedSlot) -> None:
    watched.guard.tick()
    assert watched.slot().state == HELD
    assert not gone(watched.owner.pid)


def test_another_process_of_the_same_number_is_not_signalled() -> None:
    assert not processes.send_signal(os.getpid(), processes.started(os.getpid()) + 1, signal.SIGKILL)


def test_a_result_of_a_batch_that_found_no_room_is_not_given_back(tmp_path: Path) -> None:
    """It lies in the spool already, and a run that goes back after its success would run twice."""
    ledger = FakeLedger(str(tmp_path / "ledger"))
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    runtime.table.header.fence_at = processes.boottime() + 60
    owned_slot, base = OwnedSlot.take(runtime.table), base_token()
    assert owned_slot is not None
    over, at_work, waiting = (make_claim({}, token=token_at(base, nth)) for nth in range(3))
    owned_slot.request(base, 3)
    owned_slot.receive(base, [pack_claim(claim) for claim in (over, at_work, waiting)])
    owned_slot.begin(0, 1, processes.boottime() + 60)
    assert not owned_slot.complete(0, {"outcome": "x" * COMPLETIONS_SIZE})
    now = now_utc()
    runtime.spool.put(PendingReport(over, Outcome("succeeded", now, now, result=7), Verdict("succeeded")))
    owned_slot.begin(1, 1, processes.boottime() + 60)
    slot = runtime.table.read(0)
    assert slot is not None
    Guard(runtime).slot_watch.give_back_waiting(slot, slot.since + 1)
    pending = {token: runtime.spool.get(token) for token in runtime.spool.tokens()}
    assert pending.keys() == {over.token, waiting.token}
    assert (report := pending[over.token]) is not None
    assert report.outcome is not None and report.outcome.result == 7
    assert runtime.table.records[0].taken == 0b101


def test_a_child_that_hangs_in_a_request_is_killed_and_its_claims_are_looked_up(
    tmp_path: Path,
) -> None:
    ledger = FakeLedger(str(tmp_path / "ledger"))
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    runtime.table.header.fence_at = processes.boottime() + 600
    guard, base, incarnation = Guard(runtime), base_token(), uuid4()
    pid = os.fork()
    if not pid:
        try:
            owned_slot = OwnedSlot.take(runtime.table)
            assert owned_slot is not None
            owned_slot.request(base, 3, incarnation)
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    wait_until(lambda: processes.stopped(pid), 10, "a stopped child")
    guard.slot_watch.look_at(0, processes.boottime())
    assert processes.stopped(pid), "the ledger may take its time"
    guard.slot_watch.look_at(0, processes.boottime() + 61)
    os.waitpid(pid, 0)
    guard.slot_watch.look_at(0, processes.boottime())
    assert runtime.table.states() == [FREE]
    [unconfirmed] = runtime.spool.unconfirmed()
    assert (unconfirmed.incarnation, unconfirmed.base, unconfirmed.count) == (incarnation, base, 3)


def test_behind_the_fence_a_child_that_stands_still_while_it_reports_is_killed_too(tmp_path: Path) -> None:
    """Or the worker would never register anew: that waits until no claim is left."""
    ledger = FakeLedger(str(tmp_path / "ledger"))
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    guard, token = Guard(runtime), uuid4()
    pid = os.fork()
    if not pid:
        try:
            owned_slot = at_work_on(runtime.table, token, 600)
            owned_slot.complete(0, {})
            owned_slot.start_report()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    wait_until(lambda: processes.stopped(pid), 10, "a child that stands still")
    assert runtime.table.header.fenced
    guard.slot_watch.look_at(0, processes.boottime())
    assert processes.stopped(pid), "what it reports changes nothing any more"
    guard.slot_watch.look_at(0, processes.boottime() + 61)
    os.waitpid(pid, 0)
