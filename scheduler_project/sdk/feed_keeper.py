"""The feed of a worker, as whoever starts it keeps it: one that hangs is replaced.

It hangs when nothing has turned its loop for a lease. Then another takes its place, and its children end after the runs
they are at; it is killed with all it has left when none of them has one in hand.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import processes
from .runtime import Runtime
from .slots import CLAIMED
from .stillness import Stillness

logger = logging.getLogger(__name__)

# Until its loop turns for the first time: it loads the app.
LOADING_SECONDS = 300.0


@dataclass(frozen=True)
class Hung:
    process: subprocess.Popen[bytes]
    started: int
    children: frozenset[tuple[int, int]]


class FeedKeeper:
    """Kept by one thread from first to last: the kernel ends a feed with the thread that started it."""

    def __init__(self, runtime: Runtime, environment: Mapping[str, str] | None = None) -> None:
        self._runtime, self._environment = runtime, environment
        self._feed: subprocess.Popen[bytes] | None = None
        self._hung: list[Hung] = []
        self._stillness = Stillness()

    @property
    def ended_with(self) -> int | None:
        return self._feed.poll() if self._feed is not None else None

    def is_running(self) -> bool:
        return self._feed is not None and self._feed.poll() is None

    def has_any_left(self) -> bool:
        return self.is_running() or bool(self._hung)

    def start(self) -> None:
        self._stillness = Stillness()
        self._feed = subprocess.Popen(
            command(self._runtime.folder), env=self._environment, stdin=subprocess.DEVNULL
        )
        self._runtime.table.feed = self._feed.pid

    def replace_if_hung(self) -> None:
        """Often, by whoever keeps it: what is not looked at does not grow old. It makes room for another, which `start`
        starts, and ends what is left of those before."""
        table, config = self._runtime.table, self._runtime.config
        self._hung = [hung for hung in self._hung if not self._is_over(hung)]
        if self._feed is None or self._feed.poll() is not None:
            return
        still = self._stillness.look(table.feed_turned_at)
        if still > (config.lease if table.feed_turned_at else max(LOADING_SECONDS, config.lease)):
            logger.error("The feed hangs and is replaced; its children end after their runs")
            self._hung.append(self._stop(self._feed))
            self._feed = None

    def _stop(self, feed: subprocess.Popen[bytes]) -> Hung:
        """For good: it must not wake and start more children."""
        started = processes.started(feed.pid)
        processes.send_signal(feed.pid, started, signal.SIGSTOP)
        self._runtime.table.feed = 0
        children = processes.children(feed.pid)
        for child in children:
            processes.send_signal(*child, signal.SIGTERM)
        return Hung(feed, started, frozenset(children))

    def _is_over(self, hung: Hung) -> bool:
        if hung.process.poll() is not None:
            return True
        table = self._runtime.table
        at_work = {table.raw_owner(index) for index, state in enumerate(table.states()) if state in CLAIMED}
        for child in hung.children - at_work:
            processes.send_signal(*child, signal.SIGTERM)
        if not hung.children & at_work:
            processes.kill_tree(hung.process.pid, hung.started)
        return False


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", f"{__package__}.feed", "--attached", str(folder)]
