"""Beatkeeper inside `celery worker`: the shared folder before the pool forks, the guard beside it, and slots for
the host's own tasks, so that the platform sees what is really free."""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from celery import bootsteps, signals
from celery.bin.base import CLIContext
from celery.concurrency import prefork, solo

from .guarded import GuardedWorker
from .hand import Hand
from .permit_connection import carries_permits
from .permit_task import NAME
from .runtime import open_ledger
from .slots import FOREIGN, SlotTable
from .work import Workbench

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

# A guard that died is missed as long as this and its start: both lie before the fence.
KEEP_INTERVAL = 0.2
# Nobody can end what runs in these; greenlets and threads are many, and their runs are processes each.
IN_PROCESS = tuple(f"celery.concurrency.{name}" for name in ("thread", "gevent", "eventlet"))
FEWEST_SLOTS, SLOTS_PER_CPU = 8, 4


class GuardedPool(bootsteps.StartStopStep):
    """Everything the children need exists when this step is created: that is before any pool starts."""

    def __init__(self, w: Any, **options: Any) -> None:
        w.beatkeeper = None
        super().__init__(w, **options)

    def include_if(self, w: Any) -> bool:
        from .app import keeper_of

        keeper = keeper_of(w.app)
        try:
            if not (refusal := why_not(w, keeper.ledger_url)):
                # Nothing is connected: an address that cannot be used is said here, once, and not by each guard.
                open_ledger(keeper.ledger_url)
                config = keeper.config(
                    w.hostname,
                    keeper.slots or slots_of(w) if in_process(w) else slots_of(w),
                    without_permits=in_process(w) and not carries_permits(w.app),
                    app_path=path_of(w.app),
                    keeps_feed=in_process(w),
                    **bounds_of_children(w),
                )
                self.guarded = w.beatkeeper = GuardedWorker(keeper.spool_folder, config)
        except ImportError as missing:
            refusal = f"{missing.name} is not installed; a ledger over PostgreSQL needs beatkeeper[db]."
        except (OSError, ValueError, AttributeError) as error:
            # The host's own tasks do not depend on us.
            refusal = str(error)
        if refusal:
            logger.error("Beatkeeper takes no runs in this worker: %s", refusal)
        return not refusal

    def create(self, w: Any) -> None:
        from .app import keeper_of

        keeper = keeper_of(w.app)
        keep_quiet_of_permits()
        bench = keeper.work_in(self.guarded.runtime)
        self.shared = SharedOccupancy(self.guarded.runtime.table, w.concurrency) if in_process(w) else None
        self.occupancy = self.shared or Occupancy(bench)
        # Nobody may set it for us: a default rate limit or time limit of the host's is for the host's tasks.
        task = w.app.tasks[NAME]
        task.rate_limit = task.time_limit = task.soft_time_limit = None
        self._left = threading.Event()
        signals.worker_shutting_down.connect(self.on_shutting_down, weak=False)
        signals.worker_shutdown.connect(self.on_shutdown, weak=False)

    def start(self, w: Any) -> None:
        threading.Thread(target=self.keep, name="beatkeeper-keeper", daemon=True).start()

    def keep(self) -> None:
        """Not on the event loop: that hangs while the broker is away."""
        while not self._left.is_set():
            try:
                self.guarded.keep_guard()
                if self.shared is not None:
                    self.guarded.keep_feed()
                    self.shared.settle()
            except Exception:
                # The feed ends with this thread.
                logger.exception("The guard or the feed cannot be started")
            self._left.wait(KEEP_INTERVAL)

    def close(self, w: Any) -> None:
        """Before the pool is emptied. Only signals say that they shut down: SIGHUP, remote control and an error that
        ends the worker do not."""
        self.guarded.drain()

    def on_shutting_down(self, **_options: Any) -> None:
        self.guarded.drain()

    def on_shutdown(self, **_options: Any) -> None:
        """After the pool is empty, so that results of its last runs are told too."""
        if not self._left.is_set():
            self.guarded.drain()
            # The thread that keeps the feed must outlive it.
            self.guarded.wait_for_feed()
            self._left.set()
            self.guarded.leave()


class Occupancy:
    """A host's task takes a slot while it runs, if one is free; it never waits for one."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.task_id: str | None = None
        signals.task_prerun.connect(self.begins, weak=False)
        signals.task_postrun.connect(self.ends, weak=False)

    def begins(self, sender: Any = None, task_id: str | None = None, **_options: Any) -> None:
        # A process that has a slot is inside one of our runs, and the task is its target.
        if getattr(sender, "name", NAME) == NAME or self.bench.busy:
            return
        hand = self.bench.take_slot()
        if hand is not None:
            hand.occupy()
            self.task_id = task_id

    def ends(self, task_id: str | None = None, **_options: Any) -> None:
        hand = self.bench.hand
        if hand is not None and hand.state == FOREIGN and task_id == self.task_id:
            self.bench.release_slot()


class SharedOccupancy:
    """Of a pool whose tasks all run in this one process. They use those of its threads first for which there is no
    slot, and beyond those take a slot each, if one is free."""

    def __init__(self, table: SlotTable, threads: int) -> None:
        self._table, self._spare = table, max(0, threads - table.size)
        self._lock = threading.Lock()
        self._tasks = 0
        self._hands: list[Hand] = []
        signals.task_prerun.connect(self.begins, weak=False)
        signals.task_postrun.connect(self.ends, weak=False)

    def begins(self, sender: Any = None, **_options: Any) -> None:
        self._counted(sender, 1)

    def ends(self, sender: Any = None, **_options: Any) -> None:
        self._counted(sender, -1)

    def _counted(self, sender: Any, change: int) -> None:
        # An eager task runs inside another one.
        if not sender.request.is_eager:
            with self._lock:
                self._tasks += change
            self.settle()

    def settle(self) -> None:
        """Locks belong to the process: only the slot's state keeps two of its threads apart."""
        with self._lock:
            wanted = max(0, self._tasks - self._spare)
            while len(self._hands) > wanted:
                self._hands.pop().release()
            while len(self._hands) < wanted:
                hand = Hand.take(self._table)
                if hand is None:
                    break
                hand.occupy()
                self._hands.append(hand)


def keep_quiet_of_permits() -> None:
    """That a permit came and went says nothing; the run's own task is logged by its name."""

    def is_news(record: logging.LogRecord) -> bool:
        data = getattr(record, "data", None)
        name = data.get("name") if isinstance(data, dict) else None
        return name != NAME or record.levelno > logging.INFO

    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).addFilter(is_news)


def why_not(w: Any, ledger_url: str) -> str:
    """Empty: this worker can take runs."""
    if not sys.platform.startswith("linux"):
        return "its guard needs Linux."
    if not ledger_url:
        return "no ledger is named (set BEATKEEPER_URL and BEATKEEPER_API_KEY, or BEATKEEPER_DATABASE_URL)."
    if in_process(w):
        return (
            ""
            if path_of(w.app)
            else (
                "its pool cannot stop what runs in it, so runs get processes of their own, which cannot find this app: "
                "start the worker with -A and a module that has it, or use prefork."
            )
        )
    if not issubclass(w.pool_cls, (prefork.TaskPool, solo.TaskPool)):
        return (
            f"the pool {w.pool_cls.__module__} is not known; use prefork, threads, gevent, eventlet or solo."
        )
    if getattr(w, "pool_start_method", "fork") != "fork":
        return "its pool does not fork; set worker_pool_start_method to fork."
    return ""


def in_process(w: Any) -> bool:
    return any(base.__module__ in IN_PROCESS for base in w.pool_cls.__mro__)


def bounds_of_children(w: Any) -> dict[str, Any]:
    """After which the pool replaces one. A solo worker is nobody's child."""
    if issubclass(w.pool_cls, solo.TaskPool):
        return {}
    return {"runs_per_child": w.max_tasks_per_child, "memory_per_child": w.max_memory_per_child}


def slots_of(w: Any) -> int:
    if issubclass(w.pool_cls, solo.TaskPool):
        return 1
    if in_process(w):
        return min(int(w.concurrency), max(FEWEST_SLOTS, SLOTS_PER_CPU * (os.cpu_count() or 1)))
    most = str(getattr(w, "autoscale", None) or "").strip("[]()").partition(",")[0]
    return max(int(w.concurrency), int(most) if most.isdecimal() else 0)


def path_of(app: Celery) -> str:
    """How `-A` names this app to another process, as it was named to this one, or else a module that has it; empty:
    it cannot be found there."""
    return named_path(app) or found_path(app)


def named_path(app: Celery) -> str:
    """What the command line says, or CELERY_APP: the module that is named may make the app ready, and no other."""
    context = click.get_current_context(silent=True)
    while context is not None:
        named = context.params.get("app")
        if isinstance(context.obj, CLIContext) and context.obj.app is app and isinstance(named, str):
            return named
        context = context.parent
    return ""


def found_path(app: Celery) -> str:
    """In the module whose import ended last, since that one imported the others; a worker imports its tasks' modules
    by itself, and later."""
    found = [
        f"{name}:{attribute}"
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and name.partition(".")[0] not in ("celery", "__main__")
        for attribute, value in list(vars(module).items())
        if value is app
    ]
    of_tasks = getattr(app.loader, "task_modules", ())
    outer = [path for path in found if path.partition(":")[0] not in of_tasks]
    return (outer or found or [""])[-1]
