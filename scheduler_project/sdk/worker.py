"""Beatkeeper inside `celery worker`: the shared folder before the pool forks, the guard beside it, and slots for
the host's own tasks, so that the platform sees what is really free."""

from __future__ import annotations

import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals
from celery.concurrency import prefork, solo

from .guarded import GuardedWorker
from .permit_task import NAME
from .slots import FOREIGN
from .work import Workbench

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

# A guard that died is missed as long as this and its start: both lie before the fence.
KEEP_INTERVAL = 0.2


class GuardedPool(bootsteps.StartStopStep):
    """Everything the children need exists when this step is created: that is before any pool starts."""

    def __init__(self, w: Any, **options: Any) -> None:
        w.beatkeeper = None
        super().__init__(w, **options)

    def include_if(self, w: Any) -> bool:
        from .app import keeper_of

        keeper = keeper_of(w.app)
        refusal = why_not(w, keeper.ledger_url)
        if not refusal:
            try:
                config = keeper.config(w.hostname, slots_of(w), fed=False, app_path=path_of(w.app))
                self.guarded = w.beatkeeper = GuardedWorker(keeper.spool_folder, config)
            except (OSError, ValueError) as error:
                # The host's own tasks do not depend on us.
                refusal = str(error)
        if refusal:
            logger.error("Beatkeeper takes no runs in this worker: %s", refusal)
        return not refusal

    def create(self, w: Any) -> None:
        from .app import keeper_of

        keeper = keeper_of(w.app)
        keep_quiet_of_permits()
        self.occupancy = Occupancy(keeper.work_in(self.guarded.runtime))
        # Nobody may set it for us: a default rate limit or time limit of the host's is for the host's tasks.
        task = w.app.tasks[NAME]
        task.rate_limit = task.time_limit = task.soft_time_limit = None
        self._left = threading.Event()
        signals.worker_shutting_down.connect(self.on_shutting_down, weak=False)
        signals.worker_shutdown.connect(self.on_shutdown, weak=False)

    def start(self, w: Any) -> None:
        threading.Thread(target=self.keep, name="beatkeeper-keeper", daemon=True).start()

    def keep(self) -> None:
        """Not on the event loop: that stands still while the broker is away."""
        while not self._left.is_set():
            try:
                self.guarded.keep_guard()
            except OSError:
                logger.exception("The guard cannot be started")
            self._left.wait(KEEP_INTERVAL)

    def on_shutting_down(self, **_options: Any) -> None:
        self.guarded.drain()

    def on_shutdown(self, **_options: Any) -> None:
        """After the pool is empty, so that results of its last runs are told too."""
        if not self._left.is_set():
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
        return "no ledger is named (set BEATKEEPER_DATABASE_URL, or Beatkeeper(app, database_url=…))."
    if not issubclass(w.pool_cls, (prefork.TaskPool, solo.TaskPool)):
        return f"the pool {w.pool_cls.__module__} cannot be stopped from outside; use prefork or solo."
    if getattr(w, "pool_start_method", "fork") != "fork":
        return "its pool does not fork; set worker_pool_start_method to fork."
    return ""


def slots_of(w: Any) -> int:
    if issubclass(w.pool_cls, solo.TaskPool):
        return 1
    most = str(getattr(w, "autoscale", None) or "").strip("[]()").partition(",")[0]
    return max(int(w.concurrency), int(most) if most.isdecimal() else 0)


def path_of(app: Celery) -> str:
    """`module:attribute` where another process finds this app; empty: it cannot."""
    for name, module in list(sys.modules.items()):
        if name.startswith("celery") or module is None:
            continue
        for attribute, value in list(vars(module).items()):
            if value is app:
                return f"{name}:{attribute}" if name != "__main__" else ""
    return ""
