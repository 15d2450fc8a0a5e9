"""An event loop on a thread of its own, for pools whose worker has none that could be used.

It offers what `WakeupIntake` uses of the hub of a Celery worker: a timer, one reader, and `call_soon`. Where the host
has replaced threads by greenlets it runs in one of them. kombu's hub would not do: imported before the host's
`monkey.patch_all()` it keeps the real `select`, which lets no other greenlet run.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

PAUSE = 0.02
CLOSE_PATIENCE = 2.0
AFTER_FAILURE = 1.0


class EventLoop(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="beatkeeper-wakeups", daemon=True)
        self.timer = self
        self._every: list[RepeatedCall] = []
        self._soon: deque[Callable[[], Any]] = deque()
        self._readers: dict[Any, Callable[[], Any]] = {}
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop the loop; after it nothing is called any more, except by a call that hangs longer than we wait."""
        self._closed.set()
        self.join(CLOSE_PATIENCE)

    def call_repeatedly(self, seconds: float, call: Callable[[], Any]) -> RepeatedCall:
        self._every.append(RepeatedCall(seconds, call))
        return self._every[-1]

    def call_soon(self, call: Callable[[], Any]) -> None:
        self._soon.append(call)

    def add_reader(self, sock: Any, call: Callable[[], Any]) -> None:
        self._readers[sock] = call

    def remove_reader(self, sock: Any) -> None:
        self._readers.pop(sock, None)

    def run(self) -> None:
        while not self._closed.is_set():
            try:
                self._round()
            except Exception:
                logger.exception("Wake-ups: a round of the loop failed")
                time.sleep(AFTER_FAILURE)

    def _round(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft()()
        for repeated in self._every:
            repeated.call_if_due(time.monotonic())
        if not self._readers:
            time.sleep(PAUSE)
            return
        readable, _, _ = select.select(list(self._readers), [], [], 0.0 if self._soon else PAUSE)
        for sock in readable:
            if sock in self._readers:
                self._readers[sock]()


class RepeatedCall:
    def __init__(self, seconds: float, call: Callable[[], Any]) -> None:
        self._seconds, self._call = seconds, call
        self._next = 0.0

    def call_if_due(self, now: float) -> None:
        if now >= self._next:
            self._next = now + self._seconds
            self._call()

    def cancel(self) -> None:
        self._next = float("inf")
