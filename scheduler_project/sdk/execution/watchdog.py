"""Kill this process when the guard does not: the second line of defence, where a body runs.

A guard renews the fence with every answered heartbeat. Without a guard nothing does, so this thread looks at the fence
alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from ..process import processes
from ..shared.owned_slot import OwnedSlot
from ..shared.slot_record import HELD, REQUESTED
from ..shared.slots import SlotTable

INTERVAL = 0.2
# The guard is first: it can report what happened. Both together stay below the smallest margin, one second.
AFTER_THE_FENCE = 0.4


class Watchdog:
    """One thread per process, asleep while no body runs."""

    def __init__(self, table: SlotTable) -> None:
        self.pid = os.getpid()
        self._table = table
        self._owned_slot: OwnedSlot | None = None
        self._working = threading.Event()
        threading.Thread(target=self._run, name="beatkeeper-watchdog", daemon=True).start()

    @contextlib.contextmanager
    def over(self, owned_slot: OwnedSlot) -> Iterator[None]:
        self._owned_slot = owned_slot
        self._working.set()
        try:
            yield
        finally:
            self._working.clear()
            self._owned_slot = None

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._working.wait()
            pause.wait(INTERVAL)
            owned_slot = self._owned_slot
            overdue = processes.boottime() > self._table.header.fence_at + AFTER_THE_FENCE
            # Behind the fence nothing is claimed, so what is in the slot cannot become another run meanwhile.
            if owned_slot is not None and overdue and owned_slot.state in (REQUESTED, HELD):
                processes.signal_group(*owned_slot.record.body, signal.SIGKILL)
                # In a solo worker the guard is a child of this process; it has to report the end.
                processes.kill_descendants(os.getpid(), spared=[self._table.header.guard[0]])
                os.kill(os.getpid(), signal.SIGKILL)
