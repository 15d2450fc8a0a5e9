"""The scheduler, run by the standard `celery beat -S runs.beat:PartitionedScheduler`. Any number may run.

tick() only supervises: triggering, dispatch and rescue are loops with a thread and a lock session each, so a
blocked broker or a slow pass of one never holds up the others.
"""

import atexit
import logging
import time
from typing import Any

from celery.beat import Scheduler
from django.conf import settings

from jobs.models import JOB_SLICES
from runs.loops import Loop
from runs.passes import Dispatching, Rescuing, Triggering
from runs.publish import Publisher
from runs.rescue import RescueMemory
from runs.slices import refuse_transaction_pooler

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
FAREWELL_SECONDS = 2.0


class PartitionedScheduler(Scheduler):
    """celery beat builds it twice, closes it from a signal handler, and dies of an exception from tick()."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.loops: list[Loop] = []
        self.publisher: Publisher | None = None
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        dsn = settings.DATABASE_DIRECT_URL
        refuse_transaction_pooler(dsn)
        publisher = Publisher(settings.CELERY_BROKER_URL) if settings.CELERY_BROKER_URL else None
        memory = RescueMemory()
        dispatch = Loop("dispatch", dsn, lambda session: Dispatching(session, publisher))
        trigger = Loop("trigger", dsn, lambda session: Triggering(session, dispatch.hurry))
        rescue = Loop("rescue", dsn, lambda session: Rescuing(session, memory, dispatch.hurry))
        self.publisher = publisher
        self.loops = [trigger, dispatch, rescue]
        if publisher is not None:
            publisher.start()
        for loop in self.loops:
            loop.start()
        atexit.register(self._say_farewell)

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
        if self.publisher is not None:
            self.publisher.stopping = True

    def _say_farewell(self) -> None:
        """Lets the passes under way come to their end; what does not is rolled back by PostgreSQL."""
        self.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for loop in self.loops:
            loop.join(max(0.0, end - time.monotonic()))
        if self.publisher is not None:
            self.publisher.join(max(0.0, end - time.monotonic()))

    @property
    def info(self) -> str:
        return f"    . slices -> {JOB_SLICES}, shared out among all schedulers"
