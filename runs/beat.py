"""The scheduler, run by the standard `celery beat -S runs.beat:PartitionedScheduler`. Any number may run.

tick() only supervises: triggering, dispatch and rescue are loops with a thread and a lock session each, so a
blocked broker or a slow pass of one never holds up the others (R17).
"""

import atexit
import logging
import time
from collections.abc import Callable
from typing import Any

from celery.beat import Scheduler
from django.conf import settings

from jobs.models import JOB_SLICES
from runs.loops import Loop
from runs.queries import rows
from runs.slices import JOBS, LockSession, LostLocks, SliceSet, refuse_transaction_pooler
from runs.trigger import trigger_due

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
BALANCE_SECONDS = 0.5
PASS_SECONDS = 0.1
IDLE_SECONDS = 0.25
TRIGGER_BATCH = 2000
FAREWELL_SECONDS = 2.0


class PartitionedScheduler(Scheduler):
    """celery beat builds it twice, closes it from a signal handler, and dies of an exception from tick()."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.loops: list[Loop] = []
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        dsn = settings.DATABASE_DIRECT_URL
        refuse_transaction_pooler(dsn)
        self.loops = [Loop("trigger", dsn, lambda session: Triggering(session, self._runs_are_ready))]
        for loop in self.loops:
            loop.start()
        atexit.register(self._say_farewell)

    def _runs_are_ready(self) -> None:
        for loop in self.loops:
            if loop.name == "dispatch":
                loop.hurry()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        for loop in self.loops:
            try:
                loop.supervise()
            except Exception:  # beat would die of it
                logger.exception("%s cannot be supervised", loop.name)
        return TICK_SECONDS

    def sync(self) -> None:
        """Nothing is kept in memory that would have to be written."""

    def close(self) -> None:
        """Sets flags and nothing else: it is called twice, once from a signal handler in the middle of a tick."""
        for loop in self.loops:
            loop.stopping = True

    def _say_farewell(self) -> None:
        """Lets the passes under way come to their end; what does not is rolled back by PostgreSQL."""
        self.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for loop in self.loops:
            loop.join(max(0.0, end - time.monotonic()))

    @property
    def info(self) -> str:
        return f"    . slices -> {JOB_SLICES}, shared out among all schedulers"


class Triggering:
    """Passes over the job slices held: at most one each PASS_SECONDS, none while nothing is due."""

    def __init__(self, session: LockSession, runs_are_ready: Callable[[], None]) -> None:
        self.session = session
        self.slices = SliceSet(session, JOBS, range(JOB_SLICES))
        self.runs_are_ready = runs_are_ready
        self.balanced_at = 0.0

    def step(self) -> float:
        started = time.monotonic()
        if started - self.balanced_at >= BALANCE_SECONDS:
            self.slices.balance()
            self.balanced_at = started
        pid, now, due_at = rows(self.session.connection, "next_due", {"slices": sorted(self.slices.held)})[0]
        if pid != self.session.pid:
            raise LostLocks(LostLocks.__doc__)
        if due_at is None or due_at > now:
            return IDLE_SECONDS if due_at is None else min(IDLE_SECONDS, (due_at - now).total_seconds())
        done = trigger_due(self.session.connection, self.slices.held, TRIGGER_BATCH, self.session.pid)
        if done.runs:
            self.runs_are_ready()
        return 0.0 if done.more else max(0.0, started + PASS_SECONDS - time.monotonic())
