"""A thread around one pass, on a lock session of its own; whatever fails, it opens a new session and goes on."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from runs.slices import SESSION_SECONDS, LockSession

logger = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.2
LONGEST_PAUSE = 5.0
# A stop is a flag, not an event: a signal handler may set it in the middle of anything.
LONGEST_WAIT = 0.25


class Work(Protocol):
    def step(self) -> float:
        """One pass; returns how many seconds the next one may wait."""


class Loop:
    def __init__(self, name: str, dsn: str, begin: Callable[[LockSession], Work]) -> None:
        self.name = name
        self.dsn = dsn
        self.begin = begin
        self.stopping = False
        self.last_success: float | None = None
        self.failures = 0
        self._session: LockSession | None = None
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._started = 0.0

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        self._started = time.monotonic()
        # A daemon: a hung database must not keep the process from ending, and a cut transaction is rolled back.
        self._thread = threading.Thread(target=self._run, name=f"beatkeeper-{self.name}", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def hurry(self) -> None:
        """There is work now: do not wait out the pause."""
        self._wanted.set()

    def silent_for(self) -> float:
        return time.monotonic() - max(self.last_success or 0.0, self._started)

    def supervise(self) -> None:
        """Called by tick: a dead thread is started again, a wait for a mute server is cut off."""
        if self.stopping:
            return
        if not self.alive:
            logger.error("%s had died and is started again", self.name)
            self.start()
        session = self._session
        if session is not None and self.silent_for() > 3 * SESSION_SECONDS:
            logger.error("%s has heard nothing for %.0f s: cutting its session", self.name, self.silent_for())
            self._started = time.monotonic()
            session.cut()

    def _run(self) -> None:
        while not self.stopping:
            try:
                with LockSession(self.dsn, f"beatkeeper {self.name} {os.getpid()}") as self._session:
                    self._repeat(self.begin(self._session))
            except Exception as error:  # whatever it was, the next session may do better
                self._failed(error)
            finally:
                self._session = None
            if not self.stopping:
                time.sleep(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(self.failures, 10)))

    def _repeat(self, work: Work) -> None:
        while not self.stopping:
            pause = work.step()
            self._succeeded()
            if pause > 0:
                self._wanted.wait(min(pause, LONGEST_WAIT))
            self._wanted.clear()

    def _succeeded(self) -> None:
        if self.last_success is None or self.failures:
            logger.info("%s is at work", self.name)
        self.last_success = time.monotonic()
        self.failures = 0

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        # The first failure tells the reason; the ones after it would only repeat it.
        log = logger.error if self.failures == 1 else logger.debug
        log("%s failed: %s: %s", self.name, type(error).__name__, error, exc_info=self.failures == 1)
