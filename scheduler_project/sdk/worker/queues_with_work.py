"""The queues that the ledger's responses name because runs wait there, served from the worker's event loop.

They are all there is where the broker carries no wake-ups. Where it does they fill the gaps: a wake-up may be lost,
wiped out, or go to a worker without a free slot.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from ..process import processes
from ..shared.folder import Runtime
from .admission import Admission

logger = logging.getLogger(__name__)

TICK = 0.2


class QueueServer:
    def __init__(self, hub: Any, runtime: Runtime, admission: Admission) -> None:
        self.hub, self.runtime, self.admission = hub, runtime, admission
        self._entries: list[Any] = []
        self._served = -1

    def start(self) -> None:
        self._entries.append(self.hub.timer.call_repeatedly(TICK, self.tick))

    def close(self) -> None:
        for entry in self._entries:
            entry.cancel()

    def tick(self) -> None:
        self.runtime.table.header.looped_at = processes.boottime()
        try:
            self._tick(time.monotonic())
        except Exception as error:
            # It is our failure and must not reach the host's loop.
            self._failed(error)

    def _tick(self, now: float) -> None:
        if not self.runtime.table.header.draining:
            self.admission.maintain()
            self.serve_queues()

    def _failed(self, error: Exception) -> None:
        logger.error("The runs of the pool could not be served", exc_info=error)

    def serve_queues(self) -> None:
        """Act on each response once."""
        response = self.runtime.table.header.responses
        if response != self._served:
            self._served = response
            try:
                self.admission.serve(self.runtime.queues_with_work())
            except Exception:
                # The broker has no part in it: no connection is given up for it.
                logger.exception("Runs that wait cannot be served")
