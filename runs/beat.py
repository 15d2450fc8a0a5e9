"""Run the scheduler by the standard `celery beat -S runs.beat:PartitionedScheduler`. Any number may run.

tick() only supervises: trigger, dispatch and recovery are loops with a thread and a lock session each, so a blocked
broker or a slow pass of one never holds up the others. A fourth loop writes the status of the others.

Another loop serves django-celery-beat's rows, where the settings name their database. Started for an application that
does not have the platform installed (celery -A project beat), it is the only one.
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
from runs.celery_beat.loop import CeleryBeatLoop
from runs.celery_beat.publisher import CeleryPublisher
from runs.scheduler.loop import Loop
from runs.scheduler.partitions.lock_session import LockSession, TransactionPooler, refuse_transaction_pooler

if TYPE_CHECKING:
    from runs.scheduler.broker.publisher import Publishers

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
FAREWELL_SECONDS = 2.0


class PartitionedScheduler(Scheduler):
    """Celery beat builds it twice, closes it from a signal handler, and dies of an exception from tick()."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.loops: list[Loop] = []
        # Of a platform that is installed, once it has been set up.
        self.publishers: Publishers | None = None
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
        """Write the entries of the application's own code, once; while its database is away, try again."""
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
        """Do nothing: nothing is kept in memory that would have to be written."""

    def close(self) -> None:
        """Set flags and nothing else: it is called twice, once from a signal handler in the middle of a tick."""
        for loop in self.loops:
            loop.stopping = True
        if self.publishers is not None:
            self.publishers.stop()

    def _say_farewell(self) -> None:
        """Let the passes under way finish; PostgreSQL rolls back those that do not."""
        self.close()
        end = time.monotonic() + FAREWELL_SECONDS
        for loop in self.loops:
            loop.join(max(0.0, end - time.monotonic()))
        if self.publishers is not None:
            self.publishers.join(end)

    @property
    def info(self) -> str:
        if not _platform_is_installed():
            return "    . periodic tasks of django-celery-beat, shared out among all schedulers"
        from jobs.models import JOB_SLICES

        return f"    . slices -> {JOB_SLICES}, shared out among all schedulers"


def _platform_is_installed() -> bool:
    """Return whether our apps are installed; otherwise a host project has our code alone."""
    return bool(apps.ready and apps.is_installed("runs"))


def _served(app: Celery) -> source.Source | None:
    """Return whose periodic tasks are served, or end with a sentence about the mistake in the settings."""
    if _platform_is_installed():
        return source.of_platform()
    try:
        return source.of_application(app)
    except source.NotServable as mistake:
        raise SystemExit(f"The scheduler does not start: {mistake}") from mistake


def _serving_loop(served: source.Source) -> Loop:
    _refuse_transaction_pooler(served.dsn)

    def begin(session: LockSession) -> CeleryBeatLoop:
        return CeleryBeatLoop(session, served, CeleryPublisher(served.app, served.knows_queues))

    return Loop("celery-beat", served.dsn, begin)


def _platform_loops(also: Sequence[Loop]) -> tuple[list[Loop], "Publishers"]:
    """Make the platform's loops. Their modules are imported here, because they need the platform's apps."""
    from runs.scheduler.broker.config import known_brokers
    from runs.scheduler.broker.publisher import Publishers
    from runs.scheduler.catch_up.catch_up import MAX_JOBS
    from runs.scheduler.dispatch_loop import DispatchLoop
    from runs.scheduler.observer import PassObserver, PassTotals, log_pass
    from runs.scheduler.partitions.batch_size import BatchSize
    from runs.scheduler.recovery.recover import RecoveryMemory
    from runs.scheduler.recovery_loop import RecoveryLoop
    from runs.scheduler.status import SchedulerStatus, StatusLoop
    from runs.scheduler.trigger_loop import TRIGGER_BATCH, TriggerLoop

    dsn = settings.DATABASE_DIRECT_URL
    _refuse_transaction_pooler(dsn)
    publishers = Publishers(known_brokers())
    # Kept from session to session: a loop that loses its session goes on with what it has learned.
    memory, batch = RecoveryMemory(), BatchSize("trigger", TRIGGER_BATCH)
    catch_up_batch = BatchSize("catch-up", MAX_JOBS)
    totals = PassTotals()
    observers: list[PassObserver] = [totals, log_pass]

    dispatch = Loop("dispatch", dsn, lambda session: DispatchLoop(session, publishers), observers)
    trigger = Loop(
        "trigger", dsn, lambda session: TriggerLoop(session, batch, dispatch.wake, catch_up_batch), observers
    )
    recovery = Loop("recovery", dsn, lambda session: RecoveryLoop(session, memory, dispatch.wake), observers)
    for loop in also:
        loop.observers = observers
    status = SchedulerStatus([trigger, dispatch, recovery, *also], totals)
    status_loop = Loop("status", dsn, lambda session: StatusLoop(session, status))
    return [trigger, dispatch, recovery, *also, status_loop], publishers


def _refuse_transaction_pooler(dsn: str) -> None:
    """End with a sentence if the settings lead through a transaction pooler.

    A database that is away is no mistake: the loops wait for it, and check their sessions themselves.
    """
    try:
        refuse_transaction_pooler(dsn)
    except TransactionPooler as mistake:
        raise SystemExit(f"The scheduler does not start: {mistake}") from mistake
    except psycopg.OperationalError as error:
        logger.error("the database does not answer yet: %s", str(error).partition("\n")[0])
