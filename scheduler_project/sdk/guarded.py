"""A worker process with its guard, and with its feed if it keeps one: started, restarted, drained and left together."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from pathlib import Path

from . import guard, processes
from .runtime import Config, Runtime
from .spawned import Spawned

logger = logging.getLogger(__name__)

GUARD_RESTART = 1.0
FEED_RESTART = 1.0
LONGEST_FEED_RESTART = 30.0
# Whoever lived for so long was not ended by what it began with.
LIVED = 10.0
FEED_POLL = 0.05
LAST_WORDS = 8.0


class GuardedWorker:
    def __init__(self, spool_folder: Path, config: Config) -> None:
        self.runtime = Runtime.create(spool_folder, config)
        self._guard: Spawned | None = None
        self._started = self._started_at = 0.0
        self._feed: subprocess.Popen[bytes] | None = None
        self._feed_started, self._feed_pause = 0.0, FEED_RESTART

    def keep_guard(self) -> None:
        """Starts the guard, and again whenever it is gone: it continues with what the slots say."""
        if self.runtime.table.stopping:
            return
        if self._guard is not None and self._guard.is_alive():
            self._kill_if_stuck(self._guard)
            return
        if time.monotonic() - self._started < GUARD_RESTART:
            return
        if self._guard is not None:
            logger.error("The guard ended with %s and is started again", self._guard.ended_with)
        self._started, self._started_at = time.monotonic(), processes.boottime()
        # In a session of its own: it outlives the worker's terminal and group, and has to tell how the worker ended.
        self._guard = Spawned(guard.command(self.runtime.folder), environment())

    def _kill_if_stuck(self, running: Spawned) -> None:
        """A guard that has not looked for a lease looks no more; its children have fenced themselves."""
        looked_at = max(self.runtime.table.ticked_at, self._started_at)
        if processes.boottime() - looked_at > self.runtime.config.lease:
            logger.error("The guard does not react and is replaced")
            running.kill()

    def keep_feed(self) -> None:
        """The kernel ends it with the thread that starts it: it must be the same one for as long as it lives."""
        if self.runtime.table.draining or (self._feed is not None and self._feed.poll() is None):
            return
        since = time.monotonic() - self._feed_started
        if self._feed is not None and since < self._feed_pause:
            return
        if self._feed is not None:
            logger.error("The feed ended with %s and is started again", self._feed.returncode)
            grown = min(self._feed_pause * 2, LONGEST_FEED_RESTART)
            self._feed_pause = FEED_RESTART if since > LIVED else grown
        self._feed_started = time.monotonic()
        self._feed = subprocess.Popen(
            guard.feed_command(self.runtime.folder),
            env=environment(),
            stdin=subprocess.DEVNULL,
        )

    def drain(self) -> None:
        if not self.runtime.table.draining:
            seconds = self.runtime.config.drain
            logger.info("Draining: what runs has %g s to end, what is left then is given back", seconds)
            self.runtime.table.drain(processes.boottime() + seconds)

    def wait_for_feed(self) -> None:
        """It ends after its children, and they after their runs, or at the end of the drain by the guard."""
        until = self.runtime.table.drain_until + LAST_WORDS
        while self._feed is not None and self._feed.poll() is None and processes.boottime() < until:
            time.sleep(FEED_POLL)

    def leave(self) -> None:
        """Returns when the guard has told everything, or after a while: the guard goes on alone."""
        self.drain()
        self.wait_for_feed()
        self.runtime.table.stop()
        if self._guard is None:
            return
        if not self._guard.wait(LAST_WORDS):
            logger.warning("The guard still has results to tell; it stays until they are told")


def environment() -> dict[str, str]:
    """The guard imports this package, wherever it was found."""
    root = str(Path(__file__).resolve().parents[len(__package__.split("."))])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
