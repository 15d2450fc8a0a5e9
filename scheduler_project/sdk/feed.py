"""`python -m …sdk.feed --app NAME --slots N`: a whole worker without a broker.

Its guard asks the ledger for lanes with work; its children, forked once the app is loaded, claim there. With
`--attached` it works within the slots of a Celery worker. One whose pool cannot stop what runs in it keeps a feed
from its start to its end. For any other its guard starts one while permits do not come through, which ends when
there has been nothing to do for a while.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from celery import signals
from celery.app.utils import find_app
from celery.concurrency import prefork

from . import processes
from .app import Beatkeeper, keeper_of
from .doorbell import Doorbell
from .guarded import GuardedWorker
from .ledger import Lane
from .runtime import Config, Runtime
from .work import Workbench, work_on_lane

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

POLL = 0.05
TURN_SECONDS = 1.0
RESTART_PAUSE = 1.0
IDLE_BEFORE_LEAVING = 60.0


@dataclass(eq=False)
class WorkerInitSender:
    """What receivers of `worker_init` look at; Django's fix-up closes connections around tasks after it."""

    app: Celery
    hostname: str
    pool_cls: type = prefork.TaskPool


def load_app(name: str, hostname: str, level: int, logfile: str | None = None) -> Celery:
    """As `celery worker` does it: modules imported, Django set up, logging as the app has it."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    app = find_app(name)
    app.set_default()
    app.loader.init_worker()
    app.log.setup(level, logfile, redirect_stdouts=False, hostname=hostname)
    app.finalize()
    signals.worker_init.send(sender=WorkerInitSender(app, hostname))
    return app


@dataclass
class Children:
    """One process per slot, replaced when it dies."""

    app: Celery
    bench: Workbench
    hostname: str
    count: int
    pids: dict[int, float] = field(default_factory=dict)
    pause_until: float = 0.0

    def keep(self) -> None:
        self.reap()
        while len(self.pids) < self.count and time.monotonic() >= self.pause_until:
            self.fork()

    def reap(self) -> None:
        for pid, since in list(self.pids.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if not gone:
                continue
            del self.pids[pid]
            if status and time.monotonic() - since < RESTART_PAUSE:
                logger.error("A child ended at once (status %d)", status)
                self.pause_until = time.monotonic() + RESTART_PAUSE

    def fork(self) -> None:
        parent = os.getpid()
        pid = os.fork()
        if pid:
            self.pids[pid] = time.monotonic()
            return
        status = 1
        try:
            self.live(parent)
            status = 0
        except BaseException:
            logger.exception("A child of the feed failed")
        finally:
            os._exit(status)

    def live(self, parent: int) -> None:
        prefork.process_initializer(self.app, self.hostname)
        processes.die_with_parent()
        leaving: list[int] = []
        # A handler, not SIG_IGN, which what a body starts would inherit. The run in hand is finished.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _frame: leaving.append(number))
        if os.getppid() == parent:
            serve(self.bench, len(self.pids), leaving)


def serve(bench: Workbench, turn: int, leaving: Sequence[int] = ()) -> None:
    """Claims where a permit says, and wherever the answers say that runs wait; an idle round is one look at shared
    memory."""
    table, seen = bench.runtime.table, 0
    doorbell = Doorbell(bench.runtime.folder)
    lanes: dict[tuple[int, int], Lane] = {}
    done = 0
    while not table.draining and not leaving and not is_worn(bench.runtime.config, done):
        if table.answer != seen:
            seen = table.answer
            lanes.update({(lane.pool_id, lane.tenant_id): lane for lane in bench.runtime.work()})
        if not bench.may_claim():
            time.sleep(POLL)
            continue
        if permitted := doorbell.wait(0.0 if lanes else POLL):
            done += served(bench, permitted)
        for lane in rotated(list(lanes.values()), turn) if lanes else ():
            if leaving or is_worn(bench.runtime.config, done):
                return
            if found := served(bench, lane):
                done += found
            else:
                del lanes[lane.pool_id, lane.tenant_id]
        turn += 1


def is_worn(config: Config, done: int) -> bool:
    """Another child takes its place, as in the host's own pool; what it began with is looked at after a run only."""
    return bool(
        (config.runs_per_child and done >= config.runs_per_child)
        or (config.memory_per_child and done and most_memory() > config.memory_per_child)
    )


def most_memory() -> int:
    """Of this process so far, in KiB, as the host's own pool measures it."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def served(bench: Workbench, lane: Lane) -> int:
    try:
        return work_on_lane(bench, lane, TURN_SECONDS)
    except Exception:
        logger.exception("A claim in the lane %d:%d failed", lane.pool_id, lane.tenant_id)
        time.sleep(RESTART_PAUSE)
        return 0


def rotated(lanes: list[Lane], turn: int) -> list[Lane]:
    """Children begin at different lanes, and each at another one next time."""
    start = turn % len(lanes)
    return lanes[start:] + lanes[:start]


class Feed:
    def __init__(self, app: Celery, runtime: Runtime, hostname: str, guarded: GuardedWorker | None) -> None:
        self.runtime, self.guarded = runtime, guarded
        bench = keeper_of(app).work_in(runtime)
        self.children = Children(app, bench, hostname, runtime.table.size)
        self.stopping = False
        self._busy_at = time.monotonic()

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        if self.guarded is not None:
            self.runtime.table.feed = os.getpid()
        gc.freeze()
        while not self.stopping and not self.over():
            self.runtime.table.feed_turned()
            if self.guarded is not None:
                self.guarded.keep_guard()
            self.children.keep()
            time.sleep(POLL * 2)
        self.drain()

    def over(self) -> bool:
        """Attached only: nothing came for a while, or the worker it belongs to is leaving or gone, or another feed
        took its place while it hung."""
        if self.guarded is not None:
            return False
        table = self.runtime.table
        if table.feed not in (0, os.getpid()):
            return True
        if self.runtime.config.keeps_feed:
            return table.draining or not processes.alive(*table.parent)
        busy = (table.raw_owner(index)[0] for index in range(table.size) if table.state(index))
        if any(pid in self.children.pids for pid in busy):
            self._busy_at = time.monotonic()
        return table.draining or time.monotonic() - self._busy_at > IDLE_BEFORE_LEAVING

    def drain(self) -> None:
        """Children end after their run; what still runs at the stated time the guard kills and gives back."""
        if self.guarded is not None:
            self.guarded.drain()
        for pid in self.children.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while self.children.pids:
            self.runtime.table.feed_turned()
            if self.guarded is not None:
                self.guarded.keep_guard()
            self.children.reap()
            time.sleep(POLL)
        if self.guarded is not None:
            self.guarded.leave()

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self.stopping = True


def guarded_worker(keeper: Beatkeeper, name: str, slots: int) -> GuardedWorker:
    if not keeper.ledger_url:
        raise SystemExit("No ledger: set BEATKEEPER_URL and BEATKEEPER_API_KEY, or BEATKEEPER_DATABASE_URL")
    conf = keeper.app.conf
    config = keeper.config(
        name,
        slots,
        without_permits=True,
        runs_per_child=conf.worker_max_tasks_per_child,
        memory_per_child=conf.worker_max_memory_per_child,
    )
    return GuardedWorker(keeper.spool_folder, config)


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
        # As the worker's own children are told it.
        level = int(os.environ.get("CELERY_LOG_LEVEL") or level)
        app = load_app(
            runtime.config.app, runtime.config.name, level, os.environ.get("CELERY_LOG_FILE") or None
        )
        Feed(app, runtime, runtime.config.name, None).run()
        return
    app = load_app(options.app, name, level)
    guarded = guarded_worker(keeper_of(app), name, options.slots)
    Feed(app, guarded.runtime, name, guarded).run()


if __name__ == "__main__":
    main()
