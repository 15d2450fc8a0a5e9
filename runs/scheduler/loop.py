"""Repeat one pass in a thread, on a lock session of its own; after any failure, go on with a new session."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runs.scheduler.observer import FinishedPass, PassObserver
from runs.scheduler.partitions.lock_session import SESSION_SECONDS, LockSession

logger = logging.getLogger(__name__)

MIN_PAUSE = 0.2
MAX_PAUSE = 1.0
# Stopping is a flag, not an event: a signal handler may set it in the middle of anything, also of an event's lock.
FLAG_SECONDS = 0.05
# Longer than any statement may take: a thread without a pass by then waits for a server that is gone, or hangs.
HANG_SECONDS = 3 * SESSION_SECONDS
RECENT_SECONDS = 60.0


class Work(Protocol):
    # The passes of the last step, which the loop takes out.
    finished: list[FinishedPass]

    def step(self) -> float:
        """Make one round of passes and return how many seconds the next one may wait."""

    def holds(self) -> int:
        """Return how many slices it holds; another thread calls it."""

    def end(self) -> None:
        """Finish after the last pass of a clean stop; the slices are given back with the session."""


@dataclass(eq=False, repr=False)
class Loop:
    name: str
    dsn: str
    begin: Callable[[LockSession], Work]
    observers: Sequence[PassObserver] = ()

    def __post_init__(self) -> None:
        self.stopping = False
        self.last_success: float | None = None
        self.failures = 0
        self.longest = RecentMaximum()
        self._session: LockSession | None = None
        self._work: Work | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_pass_at = 0.0
        self._was_cut = False

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def holds(self) -> int:
        work = self._work
        return work.holds() if work is not None else 0

    def start(self) -> None:
        self._last_pass_at = time.monotonic()
        self._was_cut = False
        # A daemon: a hung database must not keep the process from ending, and a cut transaction is rolled back.
        self._thread = threading.Thread(target=self._run, name=f"beatkeeper-{self.name}", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def wake(self) -> None:
        """End the pause: there is work now."""
        self._wake.set()

    def silent_for(self) -> float:
        """Return the seconds since the last pass, whether it succeeded or failed."""
        return time.monotonic() - self._last_pass_at

    def supervise(self) -> None:
        """Start a dead thread again, and cut off one that waits for a server which does not answer.

        A thread that hangs even then is left alone, without its session, and another takes its place.
        """
        if self.stopping:
            return
        if not self.alive:
            logger.error("%s had died and is started again", self.name)
            self.start()
        elif self.silent_for() > HANG_SECONDS:
            self._cut()

    def _cut(self) -> None:
        session = self._session
        if session is not None:
            session.cut()
        if self._was_cut:
            logger.error("%s does not respond: another thread takes its place", self.name)
            self.start()
            return
        logger.error("%s has made no pass for %.0f s: cutting its session", self.name, HANG_SECONDS)
        self._last_pass_at = time.monotonic()
        self._was_cut = True

    def _is_ours(self) -> bool:
        """Return whether the calling thread is still the loop's; another may have taken its place."""
        return self._thread is threading.current_thread()

    def _run(self) -> None:
        while self._is_ours() and not self.stopping:
            try:
                with LockSession(self.dsn, f"beatkeeper {self.name} {os.getpid()}") as session:
                    self._work_on(session)
            except Exception as error:  # whatever it was, the next session may do better
                if self._is_ours():
                    self._failed(error)
                    self._rest(min(MAX_PAUSE, MIN_PAUSE * 2 ** min(self.failures, 10)))

    def _work_on(self, session: LockSession) -> None:
        """Repeat the loop's work, unless the thread hung for so long that another has taken its place."""
        if not self._is_ours():
            return
        self._session = session
        work = self.begin(session)
        if not self._is_ours():
            return
        self._work = work
        while not self.stopping:
            began = time.monotonic()
            try:
                pause = work.step()
            finally:
                # Also those that were committed before another pass of this step failed.
                self._observe(work)
            if not self._is_ours():
                return
            self._succeeded(began)
            self._rest(pause, unless=self._wake)
            self._wake.clear()
        work.end()

    def _observe(self, work: Work) -> None:
        finished, work.finished[:] = list(work.finished), []
        for one in finished:
            for observer in self.observers:
                try:
                    observer(one)
                except Exception:  # an observer must not end the passes
                    logger.exception("an observer of %s failed", self.name)

    def _rest(self, seconds: float, unless: threading.Event | None = None) -> None:
        until = time.monotonic() + seconds
        unless = unless or threading.Event()
        while not self.stopping and (left := until - time.monotonic()) > 0:
            if unless.wait(min(left, FLAG_SECONDS)):
                return

    def _succeeded(self, began: float) -> None:
        if self.last_success is None or self.failures:
            logger.info("%s is at work", self.name)
        self._last_pass_at = self.last_success = time.monotonic()
        self.longest.add(self._last_pass_at, self._last_pass_at - began)
        self.failures = 0
        self._was_cut = False

    def _failed(self, error: Exception) -> None:
        self._last_pass_at = time.monotonic()
        self._session = self._work = None
        self._was_cut = False
        self.failures += 1
        # The first failure is logged with its reason; the ones after it would only repeat it.
        log = logger.error if self.failures == 1 else logger.debug
        log("%s failed: %s: %s", self.name, type(error).__name__, error, exc_info=self.failures == 1)


class RecentMaximum:
    """The longest duration of this minute and the one before."""

    _began = _now = _before = 0.0

    def add(self, at: float, seconds: float) -> None:
        if at - self._began > RECENT_SECONDS:
            self._before, self._now, self._began = self._now, 0.0, at
        self._now = max(self._now, seconds)

    @property
    def seconds(self) -> float:
        return max(self._now, self._before)
