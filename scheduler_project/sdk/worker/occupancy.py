"""Slots for the host's own tasks, so that the platform sees how many runs a worker really has room for."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from celery import signals

from ..execution.claim_loop import ClaimLoop
from ..shared.owned_slot import OwnedSlot
from .wakeup_task import NAME


class Occupancy:
    """The tasks of the host's that run in this process take a slot each, if one is free; they never wait for one.

    In a pool of threads they use the threads first for which there is no slot (`spare`).
    """

    def __init__(self, loop: ClaimLoop, spare: int) -> None:
        self._loop, self._spare = loop, spare
        self._lock = threading.Lock()
        self._tasks = 0
        self._owned_slots: list[OwnedSlot] = []
        signals.task_prerun.connect(partial(self._count, 1), weak=False)
        signals.task_postrun.connect(partial(self._count, -1), weak=False)

    def _count(self, change: int, sender: Any = None, **_options: Any) -> None:
        # A process whose loop has a slot is inside one of our runs, and the task is its target.
        if getattr(sender, "name", NAME) == NAME or self._loop.owned_slot is not None:
            return
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
                owned_slot = OwnedSlot.take(self._loop.runtime.table)
                if owned_slot is None:
                    break
                owned_slot.occupy()
                self._owned_slots.append(owned_slot)
