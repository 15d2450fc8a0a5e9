"""`python -m …sdk.worker.feed --app NAME --slots N`: a whole worker without a broker.

Its guard requests queues with work from the ledger; its children, forked once the app is loaded, claim there. With
`--attached` it works within the slots of a Celery worker. A worker whose pool cannot stop what runs in it keeps a feed
from its start to its end. For any other worker its guard starts a feed while wake-ups do not come through, which ends
when there has been nothing to do for a while.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from celery import Celery, signals
from celery.app.utils import find_app
from celery.concurrency import prefork

from ..process import processes
from ..registry import keeper_of
from ..shared.folder import Runtime
from .children import FeedChildren
from .supervisor import WorkerSupervisor

POLL = 0.1
IDLE_BEFORE_LEAVING = 60.0


@dataclass(eq=False)
class WorkerInitSender:
    """The sender of `worker_init`, with the attributes that its receivers read.

    Django's fix-up is one of them: from then on it closes connections around tasks.
    """

    app: Celery
    hostname: str
    pool_cls: type = prefork.TaskPool


def load_app(name: str, hostname: str, level: int, logfile: str | None = None) -> Celery:
    """Load an app as `celery worker` does: modules imported, Django set up, logging as the app has it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    app = find_app(name)
    app.set_default()
    app.loader.init_worker()
    app.log.setup(level, logfile, redirect_stdouts=False, hostname=hostname)
    app.finalize()
    signals.worker_init.send(sender=WorkerInitSender(app, hostname))
    return app


class Feed:
    """The loop of a feed. One without a supervisor is attached to a Celery worker."""

    def __init__(self, app: Celery, runtime: Runtime, supervisor: WorkerSupervisor | None = None) -> None:
        self.runtime, self.header = runtime, runtime.table.header
        self.supervisor = supervisor
        self.children = FeedChildren(app, keeper_of(app).work_in(runtime))
        self.stopping = False
        self._busy_at = time.monotonic()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if self.supervisor is not None:
            self.header.start_feed(os.getpid())
        # Loaded modules are never freed: a collection in a child would only copy the pages that it shares with us.
        gc.freeze()
        while not self.stopping and not self.is_over():
            self._turn()
            self.children.keep()
            time.sleep(POLL)
        self.drain()

    def _turn(self) -> None:
        self.header.note_feed_turn()
        if self.supervisor is not None:
            self.supervisor.keep_guard()

    def is_over(self) -> bool:
        """Return whether an attached feed is not needed any more.

        Nothing came for a while, or its worker is leaving or gone, or another feed took its place while it hung.
        """
        if self.supervisor is not None:
            return False
        if self.header.feed_pid not in (0, os.getpid()):
            return True
        if self.runtime.config.keeps_feed:
            return self.header.draining or not processes.alive(*self.header.parent)
        table = self.runtime.table
        busy = (record.owner[0] for record in table.records if record.state)
        if any(pid in self.children.pids for pid in busy):
            self._busy_at = time.monotonic()
        return self.header.draining or time.monotonic() - self._busy_at > IDLE_BEFORE_LEAVING

    def drain(self) -> None:
        """Let children finish their runs; the guard kills and gives back what still runs at the end of the drain."""
        if self.supervisor is not None:
            self.supervisor.drain()
        for pid in self.children.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while self.children.pids:
            self._turn()
            self.children.reap()
            time.sleep(POLL / 2)
        if self.supervisor is not None:
            self.supervisor.leave()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True


def main() -> None:
    parser = argparse.ArgumentParser(description="A Beatkeeper worker fed by its ledger, without a broker.")
    parser.add_argument("-A", "--app", default=os.environ.get("CELERY_APP", ""))
    parser.add_argument("-c", "--slots", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-n", "--name", default="")
    parser.add_argument("-l", "--loglevel", default="INFO")
    parser.add_argument("--attached", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    level = logging.getLevelName(options.loglevel.upper())
    name = options.name or f"feed@{socket.gethostname()}"
    if options.attached:
        processes.die_with_parent()
        runtime = Runtime(options.attached)
        # The level and the file that Celery gives to the worker's own children.
        level = int(os.environ.get("CELERY_LOG_LEVEL") or level)
        app = load_app(
            runtime.config.app, runtime.config.name, level, os.environ.get("CELERY_LOG_FILE") or None
        )
        Feed(app, runtime).run()
        return
    app = load_app(options.app, name, level)
    keeper = keeper_of(app)
    if not keeper.ledger_url:
        raise SystemExit("No ledger: set BEATKEEPER_URL and BEATKEEPER_API_KEY, or BEATKEEPER_DATABASE_URL")
    config = replace(
        keeper.config(name, options.slots, without_wakeups=True),
        runs_per_child=app.conf.worker_max_tasks_per_child or 0,
        memory_per_child=app.conf.worker_max_memory_per_child or 0,
    )
    supervisor = WorkerSupervisor(keeper.spool_folder, config)
    Feed(app, supervisor.runtime, supervisor).run()


if __name__ == "__main__":
    main()
