"""A worker process with its guard, and with its feed if it keeps one: started, restarted, drained and left together."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from . import guard, processes
from .feed_keeper import FeedKeeper
from .runtime import Config, Runtime
from .spawned import Spawned
from .stillness import Stillness

logger = logging.getLogger(__name__)

GUARD_RESTART = 1.0
HUNG_AT_THE_FENCE_SECONDS = 2.0
FIRST_FEED_PAUSE_SECONDS = 1.0
LONGEST_FEED_PAUSE_SECONDS = 30.0
# Whoever lived for so long was not ended by what it began with.
LIVED = 10.0
FEED_POLL = 0.05
LEAVING_SECONDS = 8.0


class GuardedWorker:
    def __init__(self, spool_folder: Path, config: Config) -> None:
        self.runtime = Runtime.create(spool_folder, config)
        self._guard: Spawned | None = None
        self._started = self._ticked_before = 0.0
        self._stillness = Stillness()
        self._feed_keeper = FeedKeeper(self.runtime, environment())
        self._feed_started, self._feed_pause = 0.0, FIRST_FEED_PAUSE_SECONDS

    def keep_guard(self) -> None:
        """Starts the guard, and again whenever it is gone: it continues with what the slots say."""
        if self.runtime.table.stopping:
            return
        if self._guard is not None and self._guard.is_alive():
            self._kill_if_hung(self._guard)
            return
        if time.monotonic() - self._started < GUARD_RESTART:
            return
        if self._guard is not None:
            logger.error("The guard ended with %s and is started again", self._guard.ended_with)
        self._started, self._ticked_before = time.monotonic(), self.runtime.table.ticked_at
        self._stillness = Stillness(self._ticked_before)
        # In a session of its own: it outlives the worker's terminal and group, and has to tell how the worker ended.
        self._guard = Spawned(guard.command(self.runtime.folder), environment())

    def _kill_if_hung(self, running: Spawned) -> None:
        """A guard that has not looked for a lease looks no more. Behind the fence there is no time to lose: not every
        body lets its own process fence it, and the next guard does."""
        table, patience = self.runtime.table, self.runtime.config.lease
        if table.fenced and table.ticked_at != self._ticked_before:
            patience = min(patience, HUNG_AT_THE_FENCE_SECONDS)
        if self._stillness.look(table.ticked_at) > patience:
            logger.error("The guard hangs and is replaced")
            running.kill()

    def keep_feed(self) -> None:
        """The kernel ends it with the thread that starts it: it must be the same one for as long as it lives."""
        self._feed_keeper.replace_if_hung()
        if self.runtime.table.draining or self._feed_keeper.is_running():
            return
        since = time.monotonic() - self._feed_started
        ended_with = self._feed_keeper.ended_with
        if ended_with is not None:
            if since < self._feed_pause:
                return
            logger.error("The feed ended with %s and is started again", ended_with)
            grown = min(self._feed_pause * 2, LONGEST_FEED_PAUSE_SECONDS)
            self._feed_pause = FIRST_FEED_PAUSE_SECONDS if since > LIVED else grown
        self._feed_started = time.monotonic()
        self._feed_keeper.start()

    def drain(self) -> None:
        if not self.runtime.table.draining:
            seconds = self.runtime.config.drain
            logger.info("Draining: what runs has %g s to end, what is left then is given back", seconds)
            self.runtime.table.drain(processes.boottime() + seconds)

    def wait_for_feed(self) -> None:
        """It ends after its children, and they after their runs, or at the end of the drain by the guard."""
        until = self.runtime.table.drain_until + LEAVING_SECONDS
        while self._feed_keeper.has_any_left() and processes.boottime() < until:
            time.sleep(FEED_POLL)

    def leave(self) -> None:
        """Returns when the guard has told everything, or after a while: the guard goes on alone."""
        self.drain()
        self.wait_for_feed()
        self.runtime.table.stop()
        if self._guard is None:
            return
        if not self._guard.wait(LEAVING_SECONDS):
            logger.warning("The guard still has results to tell; it stays until they are told")


def environment() -> dict[str, str]:
    """The guard imports this package, wherever it was found."""
    root = str(Path(__file__).resolve().parents[len(__package__.split("."))])
    path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
