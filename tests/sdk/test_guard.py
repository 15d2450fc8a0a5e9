"""The guard's decisions, staged: one process owns a slot, the guard looks, we look who was hit."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from scheduler_project.sdk import processes
from scheduler_project.sdk.claim_details import details_of
from scheduler_project.sdk.guard import Guard
from scheduler_project.sdk.hand import Hand
from scheduler_project.sdk.ledger import base_token, token_at
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.retries import Verdict
from scheduler_project.sdk.runtime import Config, Runtime
from scheduler_project.sdk.slots import ENDS_SIZE, FREE, HARD, HELD, NOT_KILLED, Slot, SlotTable
from scheduler_project.sdk.spool import Untold
from tests.sdk.fake_ledger import FakeLedger
from tests.sdk.stage import gone
from tests.sdk.test_celery_target import make_claim
from tests.waiting import wait_until


def at_work_on(table: SlotTable, token: UUID, seconds: float = 60) -> Hand:
    """This process holds a slot with one claim, and so long for it."""
    hand = Hand.take(table)
    assert hand is not None
    hand.ask(token)
    hand.receive(token, [details_of(make_claim({}, token=token))])
    hand.begin(0, 1, processes.boottime() + seconds)
    return hand


class Owner:
    """A child that holds one claim, and takes the next when it is told to."""

    def __init__(self, runtime: Runtime, first: UUID, second: UUID) -> None:
        ready, told = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            try:
                signal.signal(signal.SIGUSR1, lambda *_: self.hold(second))
                self.hand = Hand.take(runtime.table)
                self.hold(first)
                os.write(told, b"x")
                while True:
                    signal.pause()
            finally:
                os._exit(1)
        os.close(told)
        assert os.read(ready, 1) == b"x"
        os.close(ready)

    def hold(self, token: UUID) -> None:
        assert self.hand is not None
        self.hand.ask(token)
        self.hand.receive(token, [details_of(make_claim({}, token=token))])
        self.hand.begin(0, 1, processes.boottime() + 60)

    def next_run(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)


class Guarded:
    def __init__(self, folder: Path) -> None:
        self.ledger = FakeLedger(str(folder / "ledger"))
        config = Config("w", "host", "default", "", 1, self.ledger.url, f"file://{folder}/logs", [])
        self.runtime = Runtime.create(folder / "spool", config)
        self.runtime.table.fence_at = processes.boottime() + 60
        self.guard = Guard(self.runtime)
        self.guard.heartbeat.begin_anew = False
        self.first, self.second = uuid4(), uuid4()
        self.owner = Owner(self.runtime, self.first, self.second)

    def slot(self) -> Slot:
        slot = self.runtime.table.read(0)
        assert slot is not None
        return slot


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    guarded = Guarded(tmp_path)
    yield guarded
    os.kill(guarded.owner.pid, signal.SIGKILL)
    os.waitpid(guarded.owner.pid, 0)


def test_a_kill_never_hits_the_next_run(guarded: Guarded) -> None:
    seen = guarded.slot()
    guarded.owner.next_run()
    wait_until(lambda: guarded.slot().token == guarded.second, 15, "the next run")
    guarded.guard.kill(seen, "gone", HARD)
    assert not gone(guarded.owner.pid)
    assert guarded.runtime.table.kill_request(0).stage == NOT_KILLED


def test_a_child_in_the_middle_of_a_hand_over_is_left_for_the_next_look(guarded: Guarded) -> None:
    table, seen = guarded.runtime.table, guarded.slot()
    held, release = os.pipe()
    between = os.fork()
    if not between:
        with table.hand_over(0):
            os.write(release, b"x")
            signal.pause()
    try:
        assert os.read(held, 1) == b"x"
        guarded.guard.kill(seen, "gone", HARD)
        assert not gone(guarded.owner.pid)
    finally:
        os.kill(between, signal.SIGKILL)
        os.waitpid(between, 0)
    guarded.guard.kill(seen, "gone", HARD)
    wait_until(lambda: gone(guarded.owner.pid), 15, "its end")


def test_a_token_only_asked_for_when_the_beat_was_made_is_not_gone(guarded: Guarded) -> None:
    heartbeat = guarded.guard.heartbeat
    heartbeat.heard.gone = frozenset()
    guarded.guard.tick()
    assert not gone(guarded.owner.pid)
    heartbeat.heard.gone = frozenset({guarded.first})
    guarded.guard.tick()
    wait_until(lambda: gone(guarded.owner.pid), 15, "its end")


def test_behind_the_fence_even_an_unreadable_slot_is_killed(guarded: Guarded) -> None:
    table = guarded.runtime.table
    os.kill(guarded.owner.pid, signal.SIGSTOP)
    with table.writing(0):
        assert table.read(0) is None
        table.fence_at = 0.0
        guarded.guard.look_at(0, processes.boottime())
    wait_until(lambda: gone(guarded.owner.pid), 15, "its end")


def test_a_dead_owner_is_told_once_and_its_slot_is_free(guarded: Guarded) -> None:
    os.kill(guarded.owner.pid, signal.SIGKILL)
    wait_until(lambda: gone(guarded.owner.pid), 15, "its end")
    guarded.guard.tick()
    assert guarded.runtime.table.states() == [FREE]
    assert guarded.runtime.spool.tokens() == [guarded.first]
    untold = guarded.runtime.spool.get(guarded.first)
    assert untold is not None and untold.outcome is not None
    assert (untold.outcome.error_class, untold.log_is_open) == ("worker_lost", True)


def test_a_living_owner_of_a_slot_is_left_alone(guarded: Guarded) -> None:
    guarded.guard.tick()
    assert guarded.slot().state == HELD
    assert not gone(guarded.owner.pid)


def test_another_process_of_the_same_number_is_not_signalled() -> None:
    assert not processes.send_signal(os.getpid(), processes.started(os.getpid()) + 1, signal.SIGKILL)


def test_what_a_worker_wrote_down_before_it_was_upgraded_is_read(tmp_path: Path) -> None:
    config = Config("w", "host", "default", "", 1, "", f"file://{tmp_path}/logs", [], without_permits=True)
    folder = Runtime.create(tmp_path / "spool", config).folder
    written = folder / "config.json"
    written.write_text(written.read_text().replace('"without_permits"', '"fed"'))
    assert '"fed": true' in written.read_text()
    assert Runtime(folder).config.without_permits


def test_a_result_of_a_batch_that_found_no_room_is_not_given_back(tmp_path: Path) -> None:
    """It lies in the spool already, and a run that goes back after its success would run twice."""
    ledger = FakeLedger(str(tmp_path / "ledger"))
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    runtime.table.fence_at = processes.boottime() + 60
    hand, base = Hand.take(runtime.table), base_token()
    assert hand is not None
    over, at_work, waiting = (make_claim({}, token=token_at(base, nth)) for nth in range(3))
    hand.ask(base, 3)
    hand.receive(base, [details_of(claim) for claim in (over, at_work, waiting)])
    hand.begin(0, 1, processes.boottime() + 60)
    assert not hand.ended(0, {"outcome": "x" * ENDS_SIZE})
    now = now_utc()
    runtime.spool.put(Untold(over, Outcome("succeeded", now, now, result=7), Verdict("succeeded")))
    hand.begin(1, 1, processes.boottime() + 60)
    slot = runtime.table.read(0)
    assert slot is not None
    Guard(runtime).relieve(slot, slot.since + 1)
    untold = {token: runtime.spool.get(token) for token in runtime.spool.tokens()}
    assert untold.keys() == {over.token, waiting.token}
    assert (told := untold[over.token]) is not None
    assert told.outcome is not None and told.outcome.result == 7
    assert runtime.table.taken(0) == 0b101


def test_a_child_that_hangs_while_it_asks_is_killed_and_what_it_got_is_asked_for(
    tmp_path: Path,
) -> None:
    ledger = FakeLedger(str(tmp_path / "ledger"))
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    runtime.table.fence_at = processes.boottime() + 600
    guard, base, asker = Guard(runtime), base_token(), uuid4()
    pid = os.fork()
    if not pid:
        try:
            hand = Hand.take(runtime.table)
            assert hand is not None
            hand.ask(base, 3, asker)
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    wait_until(lambda: processes.stopped(pid), 10, "a stopped child")
    guard.look_at(0, processes.boottime())
    assert processes.stopped(pid), "the ledger may take its time"
    guard.look_at(0, processes.boottime() + 61)
    os.waitpid(pid, 0)
    guard.look_at(0, processes.boottime())
    assert runtime.table.states() == [FREE]
    [unheard] = runtime.spool.unheard()
    assert (unheard.incarnation, unheard.base, unheard.count) == (asker, base, 3)


def test_behind_the_fence_a_child_that_stands_still_while_it_tells_is_killed_too(tmp_path: Path) -> None:
    """Or the worker would never begin anew: that waits until nothing is in hand."""
    ledger = FakeLedger(str(tmp_path / "ledger"))
    config = Config("w", "host", "default", "", 1, ledger.url, f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path / "spool", config)
    guard, token = Guard(runtime), uuid4()
    pid = os.fork()
    if not pid:
        try:
            hand = at_work_on(runtime.table, token, 600)
            hand.ended(0, {})
            hand.reporting()
            os.kill(os.getpid(), signal.SIGSTOP)
        finally:
            os._exit(1)
    wait_until(lambda: processes.stopped(pid), 10, "a child that stands still")
    assert runtime.table.fenced
    guard.look_at(0, processes.boottime())
    assert processes.stopped(pid), "what it tells changes nothing any more"
    guard.look_at(0, processes.boottime() + 61)
    os.waitpid(pid, 0)
