"""A worker process with its guard, and with its feed if it keeps one: started, restarted, drained and left together."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from ..guard import guard
from ..guard.feed_supervisor import FeedSupervisor
from ..process import processes
from ..process.liveness import HangDetector
from ..process.spawn import SpawnedProcess
from ..shared.folder import Config, Runtime

logger = logging.getLogger(__name__)

GUARD_RESTART = 1.0
HUNG_AT_THE_FENCE_SECONDS = 2.0
MIN_FEED_PAUSE_SECONDS, MAX_FEED_PAUSE_SECONDS = 1.0, 30.0
# A feed that lived for so long did not end because of what it began with.
LIVED_SECONDS = 10.0
FEED_POLL = 0.05
LEAVING_SECONDS = 8.0


class WorkerSupervisor:
    def __init__(self, spool_folder: Path, config: Config) -> None:
        self.runtime = Runtime.create(spool_folder, config)
        self._header = self.runtime.table.header
        self._guard: SpawnedProcess | None = None
        self._started = self._ticked_before = 0.0
        self._hang_detector = HangDetector()
        self._feed_supervisor = FeedSupervisor(self.runtime, environment())
        self._feed_started, self._feed_pause = 0.0, MIN_FEED_PAUSE_SECONDS

    def keep_guard(self) -> None:
        """Start the guard, and again whenever it is gone: it continues with what the slots say."""
        if self._header.stopping:
            return
        if self._guard is not None and self._guard.is_alive():
            self._kill_if_hung(self._guard)
            return
        if time.monotonic() - self._started < GUARD_RESTART:
            return
        if self._guard is not None:
            logger.error("The guard ended with %s and is started again", self._guard.ended_with)
        self._started, self._ticked_before = time.monotonic(), self._header.ticked_at
        self._hang_detector = HangDetector(self._ticked_before)
        # In a session of its own: it outlives the worker's terminal and group, and has to report how the worker ended.
        self._guard = SpawnedProcess(guard.command(self.runtime.folder), environment())

    def _kill_if_hung(self, running: SpawnedProcess) -> None:
        """Kill a guard that has not looked at the slots for a lease, or for two seconds behind the fence.

        Behind the fence there is no time to lose: not every body lets its own process kill it, and the next guard does.
        """
        patience, ticked_at = self.runtime.config.lease, self._header.ticked_at
        if self._header.fenced and ticked_at != self._ticked_before:
            patience = min(patience, HUNG_AT_THE_FENCE_SECONDS)
        if self._hang_detector.look(ticked_at) > patience:
            logger.error("The guard hangs and is replaced")
            running.kill()

    def keep_feed(self) -> None:
        """Start the feed, and again when it ends or hangs.

        Call it from one thread for as long as that lives: the kernel ends a feed with the thread that started it.
        """
        self._feed_supervisor.replace_if_hung()
        if self._header.draining or self._feed_supervisor.is_running():
            return
        since = time.monotonic() - self._feed_started
        ended_with = self._feed_supervisor.ended_with
        if ended_with is not None:
            if since < self._feed_pause:
                return
            logger.error("The feed ended with %s and is started again", ended_with)
            grown = min(self._feed_pause * 2, MAX_FEED_PAUSE_SECONDS)
            self._feed_pause = MIN_FEED_PAUSE_SECONDS if since > LIVED_SECONDS else grown
        self._feed_started = time.monotonic()
        self._feed_supervisor.start()

    def drain(self) -> None:
        if not self._header.draining:
            seconds = self.runtime.config.drain
            logger.info("Draining: what runs has %g s to end, what is left then is given back", seconds)
            self._header.drain_until = processes.boottime() + seconds

    def wait_for_feed(self) -> None:
        """Wait for the feed, which ends after its children, and they after their runs or at the end of the drain."""
        until = self._header.drain_until + LEAVING_SECONDS
        while self._feed_supervisor.has_any_left() and processes.boottime() < until:
            time.sleep(FEED_POLL)

    def leave(self) -> None:
        """Return when the guard has reported everything, or after a while: the guard goes on alone."""
        self.drain()
        self.wait_for_feed()
        self._header.stopping = 1
        if self._guard is not None and not self._guard.wait(LEAVING_SECONDS):
            logger.warning("The guard still has results to report; it stays until they are reported")


def environment() -> dict[str, str]:
    """Return this environment with a path where the guard finds this package, wherever we found it."""
    root = str(Path(__file__).resolve().parents[len(__package__.split("."))])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
