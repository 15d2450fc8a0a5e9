"""The scheduler, run by the standard `celery beat -S runs.beat:PartitionedScheduler`. Any number may run.

tick() only supervises: triggering, dispatch and rescue are loops with a thread and a lock session each, so a
blocked broker or a slow pass of one never holds up the others. A fourth tells people how the three are doing.
"""

import atexit
import logging
import time
from typing import Any

import psycopg
from celery.beat import Scheduler
from django.conf import settings

from jobs.models import JOB_SLICES
from runs.brokers import known_brokers
from runs.catch_up import MOST_JOBS
from runs.loops import Loop
from runs.pace import Pace
from runs.passes import TRIGGER_BATCH, Dispatching, Rescuing, Triggering
from runs.presence import Presence, Telling
from runs.publish import Publishers
from runs.rescue import RescueMemory
from runs.slices import LockSession, TransactionPooler, refuse_transaction_pooler

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
FAREWELL_SECONDS = 2.0


class PartitionedScheduler(Scheduler):
    """celery beat builds it twice, closes it from a signal handler, and dies of an exception from tick()."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.loops: list[Loop] = []
        self.publishers = Publishers({})
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        dsn = settings.DATABASE_DIRECT_URL
        _refuse_transaction_pooler(dsn)
        publishers = Publishers(known_brokers())
        memory, pace = RescueMemory(), Pace("trigger", TRIGGER_BATCH)
        catch_up_pace = Pace("catch-up", MOST_JOBS)

        def triggering(session: LockSession) -> Triggering:
            work = Triggering(session, pace, dispatch.hurry)
            work.catch_up_pace = catch_up_pace
            return work

        dispatch = Loop("dispatch", dsn, lambda session: Dispatching(session, publishers))
        trigger = Loop("trigger", dsn, triggering)
        rescue = Loop("rescue", dsn, lambda session: Rescuing(session, memory, dispatch.hurry))
        self.publishers = publishers
        presence = Presence([trigger, dispatch, rescue])
        telling = Loop("presence", dsn, lambda session: Telling(session, presence))
        self.loops = [trigger, dispatch, rescue, telling]
        publishers.start()
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
        self.publishers.stop()

    def _say_farewell(self) -> None:
        """Lets the passes under way come to their end; what does not is rolled back by PostgreSQL."""
        self.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for loop in self.loops:
            loop.join(max(0.0, end - time.monotonic()))
        self.publishers.join(end)

    @property
    def info(self) -> str:
        return f"    . slices -> {JOB_SLICES}, shared out among all schedulers"


def _refuse_transaction_pooler(dsn: str) -> None:
    """A mistake of the settings is told in a sentence. A database that is away is none: the loops wait for it, and
    look at their sessions themselves."""
    try:
        refuse_transaction_pooler(dsn)
    except TransactionPooler as mistake:
        raise SystemExit(f"The scheduler does not start: {mistake}") from mistake
    except psycopg.OperationalError as error:
        logger.error("the database does not answer yet: %s", str(error).partition("\n")[0])
