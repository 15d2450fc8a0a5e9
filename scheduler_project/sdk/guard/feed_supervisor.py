"""The feed of a worker, supervised by the process that starts it: one that hangs is replaced.

A feed hangs when nothing has turned its loop for a lease. Then another takes its place, and its children end after
their current runs; it is killed with all it has left when none of them works on a claim.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..process import processes
from ..process.liveness import HangDetector
from ..shared.folder import Runtime
from ..shared.slot_record import CLAIMED

logger = logging.getLogger(__name__)

# Until its loop turns for the first time: it loads the app.
LOADING_SECONDS = 300.0


@dataclass(frozen=True)
class HungFeed:
    process: subprocess.Popen[bytes]
    started: int
    children: frozenset[tuple[int, int]]


class FeedSupervisor:
    """Use it from one thread for as long as it lives: the kernel ends a feed with the thread that started it."""

    def __init__(self, runtime: Runtime, environment: Mapping[str, str] | None = None) -> None:
        self._runtime, self._environment = runtime, environment
        self._feed: subprocess.Popen[bytes] | None = None
        self._hung: list[HungFeed] = []
        self._hang_detector = HangDetector()

    @property
    def ended_with(self) -> int | None:
        return self._feed.poll() if self._feed is not None else None

    def is_running(self) -> bool:
        return self._feed is not None and self._feed.poll() is None

    def has_any_left(self) -> bool:
        return self.is_running() or bool(self._hung)

    def start(self) -> None:
        self._hang_detector = HangDetector()
        feed = command(self._runtime.folder)
        self._feed = subprocess.Popen(feed, env=self._environment, stdin=subprocess.DEVNULL)
        self._runtime.table.header.start_feed(self._feed.pid)

    def replace_if_hung(self) -> None:
        """Stop a feed that hangs, so that `start` starts another, and end what is left of those before.

        Call it often: time counts only while the feed is looked at.
        """
        header, config = self._runtime.table.header, self._runtime.config
        self._hung = [hung for hung in self._hung if not self._is_over(hung)]
        if self._feed is None or self._feed.poll() is not None:
            return
        still = self._hang_detector.look(header.feed_turned_at)
        if still > (config.lease if header.feed_turned_at else max(LOADING_SECONDS, config.lease)):
            logger.error("The feed hangs and is replaced; its children end after their runs")
            self._hung.append(self._stop(self._feed))
            self._feed = None

    def _stop(self, feed: subprocess.Popen[bytes]) -> HungFeed:
        """Stop a feed for good and request its children to end after their runs."""
        started = processes.started(feed.pid)
        # Stopped before its children are listed: it must not wake and start more of them.
        processes.send_signal(feed.pid, started, signal.SIGSTOP)
        self._runtime.table.header.start_feed(0)
        children = processes.children(feed.pid)
        for child in children:
            processes.send_signal(*child, signal.SIGTERM)
        return HungFeed(feed, started, frozenset(children))

    def _is_over(self, hung: HungFeed) -> bool:
        if hung.process.poll() is not None:
            return True
        table = self._runtime.table
        at_work = {record.owner for record in table.records if record.state in CLAIMED}
        # Again each time: a child that had not set its handler yet lost the first signal.
        for child in hung.children - at_work:
            processes.send_signal(*child, signal.SIGTERM)
        if not hung.children & at_work:
            processes.kill_tree(hung.process.pid, hung.started)
        return False


def command(folder: Path) -> list[str]:
    return [sys.executable, "-m", f"{__package__.rpartition('.')[0]}.worker.feed", "--attached", str(folder)]
