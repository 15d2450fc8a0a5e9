"""Slots for the host's own tasks, so that the platform sees how many runs a worker really has room for."""

from __future__ import annotations

import threading
from typing import Any

from celery import signals

from ..execution.claim_loop import ClaimLoop
from ..shared.owned_slot import OwnedSlot
from ..shared.slot_record import FOREIGN
from ..shared.slots import SlotTable
from .wakeup_task import NAME


class Occupancy:
    """A task of the host's takes a slot while it runs, if one is free; it never waits for one."""

    def __init__(self, loop: ClaimLoop) -> None:
        self._loop = loop
        self._task_id: str | None = None
        signals.task_prerun.connect(self._begin, weak=False)
        signals.task_postrun.connect(self._end, weak=False)

    def _begin(self, sender: Any = None, task_id: str | None = None, **_options: Any) -> None:
        # A process that has a slot is inside one of our runs, and the task is its target.
        if getattr(sender, "name", NAME) == NAME or self._loop.owned_slot is not None:
            return
        owned_slot = self._loop.take_slot()
        if owned_slot is not None:
            owned_slot.occupy()
            self._task_id = task_id

    def _end(self, task_id: str | None = None, **_options: Any) -> None:
        owned_slot = self._loop.owned_slot
        if owned_slot is not None and owned_slot.state == FOREIGN and task_id == self._task_id:
            self._loop.release_slot()


class SharedOccupancy:
    """The tasks of a pool that runs them all in this one process.

    They use the threads first for which there is no slot, and beyond those take a slot each, if one is free.
    """

    def __init__(self, table: SlotTable, threads: int) -> None:
        self._table, self._spare = table, max(0, threads - table.size)
        self._lock = threading.Lock()
        self._tasks = 0
        self._owned_slots: list[OwnedSlot] = []
        signals.task_prerun.connect(self._begin, weak=False)
        signals.task_postrun.connect(self._end, weak=False)

    def _begin(self, sender: Any = None, **_options: Any) -> None:
        self._count(sender, 1)

    def _end(self, sender: Any = None, **_options: Any) -> None:
        self._count(sender, -1)

    def _count(self, sender: Any, change: int) -> None:
        # An eager task runs inside another one.
        if not sender.request.is_eager:
            with self._lock:
                self._tasks += change
            self.settle()

    def settle(self) -> None:
        """Take or release slots until their number fits the tasks."""
        # File locks belong to the process, so they do not keep two of its threads from taking one slot: this lock
        # does, and the slot's state.
        with self._lock:
            wanted = max(0, self._tasks - self._spare)
            while len(self._owned_slots) > wanted:
                self._owned_slots.pop().release()
            while len(self._owned_slots) < wanted:
                owned_slot = OwnedSlot.take(self._table)
                if owned_slot is None:
                    break
                owned_slot.occupy()
                self._owned_slots.append(owned_slot)
