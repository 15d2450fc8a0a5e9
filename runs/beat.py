"""The scheduler, run by the standard `celery beat -S runs.beat:PartitionedScheduler`. Any number may run.

tick() only supervises: triggering, dispatch and rescue are loops with a thread and a lock session each, so a
blocked broker or a slow pass of one never holds up the others. A fourth tells people how the three are doing.

Another serves django-celery-beat's rows, where the settings name their database. Started for an application that
does not have the platform installed (celery -A theirs beat), it is the only one.
"""

import atexit
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from celery import Celery
from celery.beat import Scheduler
from django.apps import apps
from django.conf import settings
from django.db import close_old_connections

from runs.celery_beat import source
from runs.celery_beat.courier import Courier
from runs.celery_beat.serving import Serving
from runs.loops import Loop
from runs.slices import LockSession, TransactionPooler, refuse_transaction_pooler

if TYPE_CHECKING:
    from runs.publish import Publishers

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
FAREWELL_SECONDS = 2.0


class PartitionedScheduler(Scheduler):
    """celery beat builds it twice, closes it from a signal handler, and dies of an exception from tick()."""

    # Of the platform; where that is not installed there are none.
    publishers: "Publishers"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.loops: list[Loop] = []
        if _platform_is_installed():
            self.publishers = _no_publishers()
        self._write_entries: Callable[[], None] | None = None
        super().__init__(*args, **kwargs)

    def setup_schedule(self) -> None:
        served = _served(self.app)
        also = [_serving_loop(served)] if served is not None else []
        if _platform_is_installed():
            self.loops, self.publishers = _platform_loops(also)
            self.publishers.start()
        else:
            self.loops = also
        if served is not None:
            self._write_entries = served.write_entries
        for loop in self.loops:
            loop.start()
        atexit.register(self._say_farewell)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        self._enter_entries()
        for loop in self.loops:
            try:
                loop.supervise()
            except Exception:  # beat would die of it
                logger.exception("%s cannot be supervised", loop.name)
        return TICK_SECONDS

    def _enter_entries(self) -> None:
        """Of the application's own code, once; while its database is away it is tried again."""
        if self._write_entries is None:
            return
        try:
            self._write_entries()
            self._write_entries = None
        except Exception as error:  # beat would die of it
            logger.warning("the entries of beat_schedule could not be written yet: %s", error)
        finally:
            close_old_connections()

    def sync(self) -> None:
        """Nothing is kept in memory that would have to be written."""

    def close(self) -> None:
        """Sets flags and nothing else: it is called twice, once from a signal handler in the middle of a tick."""
        for loop in self.loops:
            loop.stopping = True
        if _platform_is_installed():
            self.publishers.stop()

    def _say_farewell(self) -> None:
        """Lets the passes under way come to their end; what does not is rolled back by PostgreSQL."""
        self.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for loop in self.loops:
            loop.join(max(0.0, end - time.monotonic()))
        if _platform_is_installed():
            self.publishers.join(end)

    @property
    def info(self) -> str:
        if not _platform_is_installed():
            return "    . periodic tasks of django-celery-beat, shared out among all schedulers"
        from jobs.models import JOB_SLICES

        return f"    . slices -> {JOB_SLICES}, shared out among all schedulers"


def _platform_is_installed() -> bool:
    """Or this is somebody else's application, which has our code and not our apps."""
    return bool(apps.ready and apps.is_installed("runs"))


def _served(app: Celery) -> source.Source | None:
    """A mistake of the settings is told in a sentence."""
    if _platform_is_installed():
        return source.of_platform()
    try:
        return source.of_application(app)
    except source.NotServable as mistake:
        raise SystemExit(f"The scheduler does not start: {mistake}") from mistake


def _serving_loop(served: source.Source) -> Loop:
    _refuse_transaction_pooler(served.dsn)

    def begin(session: LockSession) -> Serving:
        return Serving(session, served, Courier(served.app, served.knows_queues))

    return Loop("celery-beat", served.dsn, begin)


def _no_publishers() -> "Publishers":
    from runs.publish import Publishers

    return Publishers({})


def _platform_loops(also: Sequence[Loop]) -> tuple[list[Loop], "Publishers"]:
    """Imported here: they need the platform's apps."""
    from runs.brokers import known_brokers
    from runs.catch_up import MOST_JOBS
    from runs.pace import Pace
    from runs.passes import TRIGGER_BATCH, Dispatching, Rescuing, Triggering
    from runs.presence import Presence, Telling
    from runs.publish import Publishers
    from runs.rescue import RescueMemory

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
    presence = Presence([trigger, dispatch, rescue, *also])
    telling = Loop("presence", dsn, lambda session: Telling(session, presence))
    return [trigger, dispatch, rescue, *also, telling], publishers


def _refuse_transaction_pooler(dsn: str) -> None:
    """A mistake of the settings is told in a sentence. A database that is away is none: the loops wait for it, and
    look at their sessions themselves."""
    try:
        refuse_transaction_pooler(dsn)
    except TransactionPooler as mistake:
        raise SystemExit(f"The scheduler does not start: {mistake}") from mistake
    except psycopg.OperationalError as error:
        logger.error("the database does not answer yet: %s", str(error).partition("\n")[0])
