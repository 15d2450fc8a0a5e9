"""Lanes that the ledger's answers name because runs wait there: served from the worker's event loop.

That is all where the broker carries no permits, and what remains where it does: a permit may be lost, wiped out, or go
to a worker without a free slot.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from .admission import Admission
from .runtime import Runtime

logger = logging.getLogger(__name__)

TICK = 0.2


class ServesNamed:
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
        """A failure here is ours and must not reach the host's loop."""
        try:
            self._tick(time.monotonic())
        except Exception as error:
            self._failed(error)

    def _tick(self, now: float) -> None:
        self.runtime.table.looped()
        if not self.runtime.table.draining:
            self.admission.look_after()
            self.serve_named()

    def _failed(self, error: Exception) -> None:
        logger.error("A look at the runs in the pool failed", exc_info=error)

    def serve_named(self) -> None:
        """What the last answer said is acted on once."""
        answer = self.runtime.table.answer
        if answer != self._served:
            self._served = answer
            try:
                self.admission.bring(self.runtime.work())
            except Exception:
                # Nothing else has a part in it: no connection is given up for it.
                logger.exception("Runs that wait cannot be served")
