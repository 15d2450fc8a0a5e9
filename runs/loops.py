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
LONGEST_PAUSE = 1.0
# A stop is a flag, not an event: a signal handler may set it in the middle of anything.
GLANCE_SECONDS = 0.05
# Longer than any statement may take: whoever gives no sign of life by then hears nothing, or is not listening.
PATIENCE_SECONDS = 3 * SESSION_SECONDS
LATELY_SECONDS = 60.0


class Work(Protocol):
    def step(self) -> float:
        """One pass; returns how many seconds the next one may wait."""

    def holds(self) -> int:
        """How many slices; asked by another thread."""

    def end(self) -> None:
        """The last words on a clean stop, after the last pass; the slices are given back with the session."""


class Loop:
    def __init__(self, name: str, dsn: str, begin: Callable[[LockSession], Work]) -> None:
        self.name = name
        self.dsn = dsn
        self.begin = begin
        self.stopping = False
        self.last_success: float | None = None
        self.failures = 0
        self.longest = Longest()
        self._session: LockSession | None = None
        self._work: Work | None = None
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._stirred = 0.0
        self._was_cut = False

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def holds(self) -> int:
        work = self._work
        return work.holds() if work is not None else 0

    def start(self) -> None:
        self._stirred = time.monotonic()
        self._was_cut = False
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
        """Since the last pass, whether it succeeded or failed."""
        return time.monotonic() - self._stirred

    def supervise(self) -> None:
        """Called by tick. A dead thread is started again, a wait for a mute server is cut off; a thread that
        hangs even then is left to itself, without its session, and another takes its place."""
        if self.stopping:
            return
        if not self.alive:
            logger.error("%s had died and is started again", self.name)
            self.start()
        elif self.silent_for() > PATIENCE_SECONDS:
            self._cut()

    def _cut(self) -> None:
        session = self._session
        if session is not None:
            session.cut()
        if self._was_cut:
            logger.error("%s hangs: another thread takes its place", self.name)
            self.start()
            return
        logger.error(
            "%s has shown no sign of life for %.0f s: cutting its session", self.name, PATIENCE_SECONDS
        )
        self._stirred = time.monotonic()
        self._was_cut = True

    def _is_ours(self) -> bool:
        """Asked by the thread itself: another may have taken its place."""
        return self._thread is threading.current_thread()

    def _run(self) -> None:
        while self._is_ours() and not self.stopping:
            try:
                with LockSession(self.dsn, f"beatkeeper {self.name} {os.getpid()}") as session:
                    self._work_on(session)
            except Exception as error:  # whatever it was, the next session may do better
                if self._is_ours():
                    self._failed(error)
                    self._rest(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(self.failures, 10)))

    def _work_on(self, session: LockSession) -> None:
        """Wherever it may have hung, a thread that woke too late says nothing in the name of the loop."""
        if not self._is_ours():
            return
        self._session = session
        work = self.begin(session)
        if self._is_ours():
            self._work = work
            self._repeat(work)

    def _repeat(self, work: Work) -> None:
        while not self.stopping:
            began = time.monotonic()
            pause = work.step()
            if not self._is_ours():
                return
            self._succeeded(began)
            self._rest(pause, unless=self._wanted)
            self._wanted.clear()
        work.end()

    def _rest(self, seconds: float, unless: threading.Event | None = None) -> None:
        until = time.monotonic() + seconds
        unless = unless or threading.Event()
        while not self.stopping and (left := until - time.monotonic()) > 0:
            if unless.wait(min(left, GLANCE_SECONDS)):
                return

    def _succeeded(self, began: float) -> None:
        if self.last_success is None or self.failures:
            logger.info("%s is at work", self.name)
        self._stirred = self.last_success = time.monotonic()
        self.longest.add(self._stirred, self._stirred - began)
        self.failures = 0
        self._was_cut = False

    def _failed(self, error: Exception) -> None:
        self._stirred = time.monotonic()
        self._session = self._work = None
        self._was_cut = False
        self.failures += 1
        # The first failure tells the reason; the ones after it would only repeat it.
        log = logger.error if self.failures == 1 else logger.debug
        log("%s failed: %s: %s", self.name, type(error).__name__, error, exc_info=self.failures == 1)


class Longest:
    """The longest pass of late: of this minute and the one before."""

    def __init__(self) -> None:
        self._began = 0.0
        self._now = self._before = 0.0

    def add(self, at: float, seconds: float) -> None:
        if at - self._began > LATELY_SECONDS:
            self._before, self._now, self._began = self._now, 0.0, at
        self._now = max(self._now, seconds)

    @property
    def seconds(self) -> float:
        return max(self._now, self._before)
