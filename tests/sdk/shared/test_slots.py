"""The slot table, with real processes as owners."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared.owned_slot import OwnedSlot
from scheduler_project.sdk.shared.slot_record import FREE, HELD, REPORTING, REQUESTED, SOFT
from scheduler_project.sdk.shared.slots import SlotTable
from tests.sdk.stage import gone
from tests.support.waiting import wait_until


@pytest.fixture
def table(tmp_path: Path) -> SlotTable:
    return SlotTable.create(tmp_path, 2)


class Forked:
    """Children of the test; each does something with the table and then sleeps until it is killed."""

    def __init__(self) -> None:
        self.pids: list[int] = []

    def __call__(self, action: Callable[[], object]) -> int:
        ready, done = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                action()
                os.write(done, b"x")
                signal.pause()
            finally:
                os._exit(1)
        self.pids.append(pid)
        os.close(done)
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


def requesting(table: SlotTable) -> Callable[[], OwnedSlot]:
    def ask() -> OwnedSlot:
        owned_slot = OwnedSlot.take(table)
        assert owned_slot is not None
        owned_slot.request(uuid4())
        return owned_slot

    return ask


def test_two_processes_never_own_one_slot(table: SlotTable, forked: Forked) -> None:
    forked(requesting(table))
    forked(requesting(table))
    assert OwnedSlot.take(table) is None
    assert table.states() == [REQUESTED, REQUESTED]


def test_the_kernel_frees_a_dead_owners_slot(table: SlotTable, forked: Forked) -> None:
    owner = forked(requesting(table))
    assert not table.take_ownership(0)
    forked.kill(owner)
    assert table.take_ownership(0)


def test_a_fork_of_the_owner_releases_nothing(table: SlotTable, forked: Forked) -> None:
    """A task that forks, and whose child ends by SystemExit, comes to the end of the task twice."""
    owned_slot = requesting(table)()
    forked(owned_slot.release)
    assert table.states() == [REQUESTED, FREE]
    owned_slot.release()
    assert table.states() == [FREE, FREE]


def test_a_dead_owners_claim_is_left_to_the_guard(table: SlotTable, forked: Forked) -> None:
    forked.kill(forked(requesting(table)))
    owned_slot = OwnedSlot.take(table)
    assert owned_slot is not None and owned_slot.index == 1


def test_a_claim_is_read_as_it_was_written(table: SlotTable) -> None:
    owned_slot = OwnedSlot.take(table)
    assert owned_slot is not None
    token = uuid4()
    owned_slot.request(token)
    claim = {"run_id": "r", "token": str(token)}
    owned_slot.receive(token, [claim])
    assert owned_slot.begin(0, 7, 123.5)
    owned_slot.set_body(os.getpid(), 5)
    slot = table.read(0)
    assert slot is not None
    assert (slot.state, slot.token, slot.claim_seq, slot.deadline) == (HELD, token, 7, 123.5)
    assert (slot.body, slot.owner[0]) == ((os.getpid(), 5), os.getpid())
    assert table.batch(0) == {0: claim}
    owned_slot.start_report()
    assert table.records[0].state == REPORTING
    owned_slot.release()
    assert table.states() == [FREE, FREE]


def test_a_writer_stopped_half_way_does_not_block_a_reader(table: SlotTable, forked: Forked) -> None:
    def write_half() -> None:
        with table.records[0].writing():
            os.kill(os.getpid(), signal.SIGSTOP)

    ready, done = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            write_half()
        finally:
            os._exit(1)
    forked.pids.append(pid)
    os.close(done)
    os.close(ready)
    wait_until(lambda: table.read(0) is None, 15, "an unreadable slot")
    forked.kill(pid)
    table.records[0].clear()
    slot = table.read(0)
    assert slot is not None and slot.state == FREE


def test_the_hand_over_lock_keeps_an_owner_where_it_is(table: SlotTable, forked: Forked) -> None:
    ready, done = os.pipe()
    with table.hand_over(0):
        pid = os.fork()
        if not pid:
            try:
                requesting(table)()
                os.write(done, b"x")
                signal.pause()
            finally:
                os._exit(1)
        forked.pids.append(pid)
        assert table.records[0].state == FREE
    assert os.read(ready, 1) == b"x"
    assert table.records[0].state == REQUESTED


def test_a_guard_waits_only_briefly_for_the_hand_over_lock(table: SlotTable, forked: Forked) -> None:
    held = table.hand_over(0)
    forked(held.__enter__)
    with table.hand_over(0, wait=0.05) as taken:
        assert not taken


def test_a_kill_request_names_its_claim(table: SlotTable) -> None:
    owned_slot = OwnedSlot.take(table)
    assert owned_slot is not None
    first, second = uuid4(), uuid4()
    owned_slot.request(first)
    table.records[0].request_kill(first, "cancelled", SOFT, 1.0)
    assert owned_slot.kill_reason == "cancelled"
    owned_slot.request(second)
    assert owned_slot.kill_reason == ""
    owned_slot.release()


def test_header_values_survive_another_mapping(table: SlotTable) -> None:
    incarnation = uuid4()
    table.header.incarnation, table.header.fence_at = incarnation, 12.5
    table.header.parent = processes.identity(os.getpid())
    again = SlotTable(table.folder)
    assert (again.header.incarnation, again.header.fence_at, again.header.parent[0]) == (
        incarnation,
        12.5,
        os.getpid(),
    )
