"""Beatkeeper inside `celery worker`: the shared folder before the pool forks, and the guard beside it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import replace
from typing import Any

from celery import bootsteps, signals
from celery.concurrency import prefork, solo

from ..ledger import open_ledger
from ..registry import keeper_of
from .app_path import app_path
from .occupancy import Occupancy
from .supervisor import WorkerSupervisor
from .wakeup_connection import carries_wakeups
from .wakeup_task import NAME

logger = logging.getLogger(__name__)

# A guard that died is missed as long as this and its start: both lie before the fence.
KEEP_INTERVAL = 0.2
# Pools whose tasks cannot be killed: in their workers each run gets a process of its own.
IN_PROCESS = tuple(f"celery.concurrency.{name}" for name in ("thread", "gevent", "eventlet"))
MIN_SLOTS, SLOTS_PER_CPU = 8, 4


class SupervisorStep(bootsteps.StartStopStep):
    """Create everything the children need with this step: that is before any pool starts."""

    def __init__(self, w: Any, **options: Any) -> None:
        w.beatkeeper = None
        super().__init__(w, **options)

    def include_if(self, w: Any) -> bool:
        keeper = keeper_of(w.app)
        try:
            if not (refusal := reason_to_refuse(w, keeper.ledger_url)):
                # Nothing is connected: an address that cannot be used is logged here, once, and not by each guard.
                open_ledger(keeper.ledger_url)
                in_process = runs_in_process(w)
                without_wakeups = in_process and not carries_wakeups(w.app)
                config = replace(
                    keeper.config(w.hostname, slots_of(w), without_wakeups=without_wakeups),
                    app=app_path(w.app),
                    keeps_feed=in_process,
                    **bounds_of_children(w),
                )
                self.supervisor = w.beatkeeper = WorkerSupervisor(keeper.spool_folder, config)
        except ImportError as missing:
            refusal = f"{missing.name} is not installed; a ledger over PostgreSQL needs beatkeeper[db]."
        except (OSError, ValueError) as error:
            refusal = str(error)
        except Exception as error:
            # Whatever it is: the host's own tasks do not depend on us.
            refusal = f"{type(error).__name__}: {error}"
        if refusal:
            logger.error("Beatkeeper takes no runs in this worker: %s", refusal)
        return not refusal

    def create(self, w: Any) -> None:
        ignore_wakeups_in_log()
        runtime = self.supervisor.runtime
        spare = max(0, w.concurrency - runtime.table.size) if runs_in_process(w) else 0
        self.occupancy = Occupancy(keeper_of(w.app).work_in(runtime), spare)
        # The host's default rate limit and time limits are for the host's tasks.
        task = w.app.tasks[NAME]
        task.rate_limit = task.time_limit = task.soft_time_limit = None
        self._left = threading.Event()
        signals.worker_shutting_down.connect(self.close, weak=False)
        signals.worker_shutdown.connect(self._on_shutdown, weak=False)

    def start(self, w: Any) -> None:
        # Not on the event loop, which hangs while the broker is away: the guard must be kept all the same.
        threading.Thread(target=self._keep, name="beatkeeper-keeper", daemon=True).start()

    def _keep(self) -> None:
        while not self._left.is_set():
            try:
                self.supervisor.keep_guard()
                if self.supervisor.runtime.config.keeps_feed:
                    self.supervisor.keep_feed()
                    self.occupancy.settle()
            except Exception:
                # The kernel ends the feed with this thread, so the thread goes on.
                logger.exception("The guard or the feed cannot be started")
            self._left.wait(KEEP_INTERVAL)

    def close(self, parent: Any = None, **_options: Any) -> None:
        """Drain before the pool is emptied, as Celery calls it, and as soon as the signal of a shutdown says so.

        SIGHUP, remote control and an error that ends the worker send no such signal.
        """
        self.supervisor.drain()

    def _on_shutdown(self, **_options: Any) -> None:
        """Leave after the pool is empty, so that results of its last runs are reported too."""
        if not self._left.is_set():
            self.supervisor.drain()
            # The thread that keeps the feed must outlive it, or the kernel would kill the feed with its last runs.
            self.supervisor.wait_for_feed()
            self._left.set()
            self.supervisor.leave()


def ignore_wakeups_in_log() -> None:
    """Keep Celery from logging each wake-up as it comes and goes; a run's own task is logged by its name."""

    def is_news(record: logging.LogRecord) -> bool:
        data = getattr(record, "data", None)
        name = data.get("name") if isinstance(data, dict) else None
        return name != NAME or record.levelno > logging.INFO

    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).addFilter(is_news)


def reason_to_refuse(w: Any, ledger_url: str) -> str:
    """Return why this worker cannot take runs; empty if it can."""
    if not sys.platform.startswith("linux"):
        return "its guard needs Linux."
    if not ledger_url:
        return "no ledger is named (set BEATKEEPER_URL and BEATKEEPER_API_KEY, or BEATKEEPER_DATABASE_URL)."
    if runs_in_process(w):
        unreachable = (
            "its pool cannot stop what runs in it, so runs get processes of their own, which cannot find this app: "
            "start the worker with -A and a module that has it, or use prefork."
        )
        return "" if app_path(w.app) else unreachable
    if not issubclass(w.pool_cls, (prefork.TaskPool, solo.TaskPool)):
        return (
            f"the pool {w.pool_cls.__module__} is not known; use prefork, threads, gevent, eventlet or solo."
        )
    if getattr(w, "pool_start_method", "fork") != "fork":
        return "its pool does not fork; set worker_pool_start_method to fork."
    return ""


def runs_in_process(w: Any) -> bool:
    """Return whether the pool runs tasks in the worker's own process."""
    return any(base.__module__ in IN_PROCESS for base in w.pool_cls.__mro__)


def bounds_of_children(w: Any) -> dict[str, Any]:
    """Return the bounds after which the pool replaces a child; a solo worker has no children."""
    if issubclass(w.pool_cls, solo.TaskPool):
        return {}
    return {"runs_per_child": w.max_tasks_per_child or 0, "memory_per_child": w.max_memory_per_child or 0}


def slots_of(w: Any) -> int:
    if issubclass(w.pool_cls, solo.TaskPool):
        return 1
    if runs_in_process(w):
        return keeper_of(w.app).slots or min(
            int(w.concurrency), max(MIN_SLOTS, SLOTS_PER_CPU * (os.cpu_count() or 1))
        )
    most = str(getattr(w, "autoscale", None) or "").strip("[]()").partition(",")[0]
    return max(int(w.concurrency), int(most) if most.isdecimal() else 0)
