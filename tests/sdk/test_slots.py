"""The slot table, with real processes as owners."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler_project.sdk.hand import Hand
from scheduler_project.sdk.slots import ASKED, FREE, HELD, REPORTING, SOFT, SlotTable
from tests.sdk.stage import gone
from tests.waiting import wait_until


@pytest.fixture
def table(tmp_path: Path) -> SlotTable:
    return SlotTable.create(tmp_path, 2)


class Forked:
    """Children of the test; each does something with the table and then sleeps until it is killed."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def __call__(self, action: Callable[[], object]) -> int:
        ready, told = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                action()
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(1)
        self.pids.append(pid)
        os.close(told)
        assert os.read(ready, 1) == b"x"
        os.close(ready)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(pid), 15, "a dead child")


@pytest.fixture
def forked() -> Iterator[Forked]:
    forked = Forked()
    yield forked
    for pid in forked.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def asking(table: SlotTable) -> Callable[[], Hand]:
    def ask() -> Hand:
        hand = Hand.take(table)
        assert hand is not None
        hand.ask(uuid4())
        return hand

    return ask


def test_two_processes_never_own_one_slot(table: SlotTable, forked: Forked) -> None:
    forked(asking(table))
    forked(asking(table))
    assert Hand.take(table) is None
    assert table.states() == [ASKED, ASKED]


def test_the_kernel_frees_a_dead_owners_slot(table: SlotTable, forked: Forked) -> None:
    owner = forked(asking(table))
    assert not table.take_ownership(0)
    forked.kill(owner)
    assert table.take_ownership(0)


def test_a_dead_owners_claim_is_left_to_the_guard(table: SlotTable, forked: Forked) -> None:
    forked.kill(forked(asking(table)))
    hand = Hand.take(table)
    assert hand is not None and hand.index == 1


def test_a_claim_is_read_as_it_was_written(table: SlotTable) -> None:
    hand = Hand.take(table)
    assert hand is not None
    token = uuid4()
    hand.ask(token)
    claim = {"run_id": "r", "token": str(token)}
    hand.receive(token, [claim])
    assert hand.begin(0, 7, 123.5)
    hand.body(os.getpid(), 5)
    slot = table.read(0)
    assert slot is not None
    assert (slot.state, slot.token, slot.claim_seq, slot.deadline) == (HELD, token, 7, 123.5)
    assert (slot.body, slot.body_started, slot.pid) == (os.getpid(), 5, os.getpid())
    assert table.batch(0) == {0: claim}
    hand.reporting()
    assert table.state(0) == REPORTING
    hand.release()
    assert table.states() == [FREE, FREE]


def test_a_writer_stopped_half_way_does_not_block_a_reader(table: SlotTable, forked: Forked) -> None:
    def write_half() -> None:
        with table.writing(0):
            os.kill(os.getpid(), signal.SIGSTOP)

    ready, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            write_half()
        finally:
            os._exit(1)
    forked.pids.append(pid)
    os.close(told)
    os.close(ready)
    wait_until(lambda: table.read(0) is None, 15, "an unreadable slot")
    forked.kill(pid)
    table.clear(0)
    slot = table.read(0)
    assert slot is not None and slot.state == FREE


def test_the_hand_over_lock_keeps_an_owner_where_it_is(table: SlotTable, forked: Forked) -> None:
    ready, told = os.pipe()
    with table.hand_over(0):
        pid = os.fork()
        if not pid:
            try:
                asking(table)()
                os.write(told, b"x")
                signal.pause()
            finally:
                os._exit(1)
        forked.pids.append(pid)
        assert table.state(0) == FREE
    assert os.read(ready, 1) == b"x"
    assert table.state(0) == ASKED


def test_a_guard_waits_only_briefly_for_the_hand_over_lock(table: SlotTable, forked: Forked) -> None:
    held = table.hand_over(0)
    forked(held.__enter__)
    with table.hand_over(0, wait=0.05) as taken:
        assert not taken


def test_a_kill_request_names_its_claim(table: SlotTable) -> None:
    hand = Hand.take(table)
    assert hand is not None
    first, second = uuid4(), uuid4()
    hand.ask(first)
    table.request_kill(0, first, "cancelled", SOFT, 1.0)
    assert hand.kill_reason == "cancelled"
    hand.ask(second)
    assert hand.kill_reason == ""
    hand.release()


def test_header_values_survive_another_mapping(table: SlotTable) -> None:
    incarnation = uuid4()
    table.incarnation, table.fence_at = incarnation, 12.5
    table.parent = os.getpid()
    again = SlotTable(table.folder)
    assert (again.incarnation, again.fence_at, again.parent[0]) == (incarnation, 12.5, os.getpid())
