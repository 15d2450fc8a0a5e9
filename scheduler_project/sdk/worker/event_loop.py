"""The event loop of a Celery worker on a thread of its own, for pools whose worker has none that could be used.

Where the host has replaced threads by greenlets it runs in one of them.
"""

from __future__ import annotations

import logging
import threading
import time

from kombu.asynchronous import Hub

logger = logging.getLogger(__name__)

CLOSE_PATIENCE = 2.0
AFTER_FAILURE = 1.0


class EventLoop(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="beatkeeper-wakeups", daemon=True)
        self.hub = Hub()
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self.hub.run_once()
            except Exception:
                logger.exception("Wake-ups: a round of the loop failed")
                time.sleep(AFTER_FAILURE)

    def close(self) -> None:
        """Stop the loop; after it nothing is called any more, except by a call that hangs longer than we wait."""
        self._closed.set()
        self.join(CLOSE_PATIENCE)
