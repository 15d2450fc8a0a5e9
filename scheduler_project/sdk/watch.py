"""The second line of defence, in the process that runs a body: if the guard does not, it stops itself.

A guard renews the fence with every answered heartbeat. Without a guard nobody does, so the fence is all there
is to look at.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from . import processes
from .hand import Hand
from .slots import ASKED, HELD, SlotTable

INTERVAL = 0.2
# The guard is first: it can say what happened. Both together stay below the smallest margin, one second.
AFTER_THE_FENCE = 0.4


class Watch:
    """One thread per process, asleep while no body runs."""

    def __init__(self, table: SlotTable) -> None:
        self.pid = os.getpid()
        self._table = table
        self._hand: Hand | None = None
        self._working = threading.Event()
        threading.Thread(target=self._run, name="beatkeeper-watch", daemon=True).start()

    @contextlib.contextmanager
    def over(self, hand: Hand) -> Iterator[None]:
        self._hand = hand
        self._working.set()
        try:
            yield
        finally:
            self._working.clear()
            self._hand = None

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            self._working.wait()
            pause.wait(INTERVAL)
            hand = self._hand
            if hand is not None and processes.boottime() > self._table.fence_at + AFTER_THE_FENCE:
                self._stop(hand)

    def _stop(self, hand: Hand) -> None:
        # Behind the fence nothing is claimed, so what is in hand cannot become another run meanwhile.
        if hand.state in (ASKED, HELD):
            processes.signal_group(*self._table.raw_body(hand.index), signal.SIGKILL)
            processes.kill_descendants(os.getpid(), spared=[self._table.guard[0]])
            os.kill(os.getpid(), signal.SIGKILL)
