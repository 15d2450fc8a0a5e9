"""What the scheduler's three loops do over and over, each on the lock session it was begun with."""

import logging
import time
from collections.abc import Callable, Iterable
from datetime import datetime

from django.conf import settings
from django.db import close_old_connections

from jobs.declarations import apply_declarations
from jobs.models import JOB_SLICES
from runs import upkeep
from runs.dispatch import PoolMemory, dispatch_pool
from runs.publish import Publisher
from runs.queries import rows
from runs.rescue import RescueMemory, rescue_once
from runs.slices import JOBS, POOLS, RESCUE, LockSession, LostLocks, SliceSet
from runs.trigger import NoPartition, trigger_due

logger = logging.getLogger(__name__)

BALANCE_SECONDS = 0.5
PASS_SECONDS = 0.1
IDLE_SECONDS = 0.25
TRIGGER_BATCH = 2000
# Windows are full: their turnover is queued further ahead than this.
FULL_SECONDS = 0.05
RESCUE_SECONDS = 0.25
DECLARATIONS_SECONDS = 1.0
DECLARATIONS_AT_ONCE = 20
DAY_SECONDS = 86_400.0


class Holding:
    """A share of the slices of one kind, balanced from time to time."""

    def __init__(self, session: LockSession, kind: int, universe: Iterable[int]) -> None:
        self.session = session
        self.slices = SliceSet(session, kind, universe)
        self._balanced_at = 0.0

    def balance(self) -> bool:
        """Whether the slices held are others than before."""
        if time.monotonic() - self._balanced_at < BALANCE_SECONDS:
            return False
        before = set(self.slices.held)
        self._look_around()
        self.slices.balance()
        self._balanced_at = time.monotonic()
        return before != self.slices.held

    def _look_around(self) -> None:
        """For kinds whose universe changes."""

    def now(self) -> datetime:
        pid, now = rows(self.session.connection, "session_and_time")[0]
        if pid != self.session.pid:
            raise LostLocks(LostLocks.__doc__)
        return now  # type: ignore[no-any-return]


class Triggering(Holding):
    """At most one pass each PASS_SECONDS; while nothing is due, an index probe shortly before the next time."""

    def __init__(self, session: LockSession, runs_are_ready: Callable[[], None]) -> None:
        super().__init__(session, JOBS, range(JOB_SLICES))
        self.runs_are_ready = runs_are_ready

    def step(self) -> float:
        started = time.monotonic()
        self.balance()
        held = sorted(self.slices.held)
        pid, now, due_at = rows(self.session.connection, "next_due", {"slices": held})[0]
        if pid != self.session.pid:
            raise LostLocks(LostLocks.__doc__)
        if due_at is None or due_at > now:
            return IDLE_SECONDS if due_at is None else min(IDLE_SECONDS, (due_at - now).total_seconds())
        try:
            done = trigger_due(self.session.connection, held, TRIGGER_BATCH, self.session.pid)
        except NoPartition:
            logger.critical("ALARM: there is no partition for a planned time")
            upkeep.keep_partitions(self.session.connection, now)
            raise
        if done.runs:
            self.runs_are_ready()
        return 0.0 if done.more else max(0.0, started + PASS_SECONDS - time.monotonic())


class Dispatching(Holding):
    """A pass over each pool held that has ready runs; what it marked is offered to the publisher afterwards."""

    def __init__(self, session: LockSession, publisher: Publisher | None) -> None:
        super().__init__(session, POOLS, [])
        self.publisher = publisher
        self.memories: dict[int, PoolMemory] = {}
        self._busy: set[int] = set()

    def _look_around(self) -> None:
        self.slices.universe = {pool for (pool,) in rows(self.session.connection, "pools")}

    def step(self) -> float:
        if self.balance():
            self._take_over()
        held = {"pools": sorted(self.slices.held)}
        ready = {pool for (pool,) in rows(self.session.connection, "pools_with_ready_runs", held)}
        # A pool whose last ready run is gone gets one more look, so that its lanes show no stale reason.
        looked_at = sorted(ready | (self._busy & self.slices.held))
        self._busy = ready
        return min((self._dispatch(pool) for pool in looked_at), default=PASS_SECONDS)

    def _take_over(self) -> None:
        held = self.slices.held
        self.memories = {pool: self.memories.get(pool, PoolMemory()) for pool in held}
        if self.publisher is not None:
            queues = rows(self.session.connection, "queues_of_pools", {"pools": sorted(held)})
            self.publisher.declare(queue for (queue,) in queues)

    def _dispatch(self, pool: int) -> float:
        notice = "broker" if self.publisher is not None and self.publisher.broken else ""
        started = time.monotonic()
        done = dispatch_pool(self.session.connection, pool, self.now(), self.memories[pool], notice)
        if self.publisher is not None:
            self.publisher.declare(done.queues)
            self.publisher.offer(done.permits)
        if done.queued or done.blocked:
            return 0.0
        # A pool with so many lanes that a look takes long is looked at less often, not all the time.
        return max(FULL_SECONDS if done.waiting else PASS_SECONDS, time.monotonic() - started)


class Rescuing(Holding):
    """One scheduler at a time; the others wait for its slice."""

    def __init__(
        self, session: LockSession, memory: RescueMemory, runs_are_ready: Callable[[], None]
    ) -> None:
        super().__init__(session, RESCUE, [0])
        self.memory = memory
        self.runs_are_ready = runs_are_ready
        self._put_off: set[int] = set()
        upkeep.keep_partitions(session.connection, self.now())

    def step(self) -> float:
        self.balance()
        if not self.slices.held:
            return IDLE_SECONDS
        now = self.now()
        done = rescue_once(self.session.connection, self.memory, now)
        if done.promoted or done.released:
            self.runs_are_ready()
        if self.memory.is_due("declarations", DECLARATIONS_SECONDS, now):
            self._apply_declarations()
        if self.memory.is_due("upkeep", DAY_SECONDS, now):
            upkeep.keep_partitions(self.session.connection, now)
            upkeep.forget_nodes(self.session.connection, now)
            upkeep.analyze_in_background(settings.DATABASE_DIRECT_URL)
        return RESCUE_SECONDS

    def _apply_declarations(self) -> None:
        """Through the same services as everybody's, so on Django's connection; its troubles are not rescue's."""
        if not rows(self.session.connection, "declarations_wait")[0][0]:
            return
        try:
            close_old_connections()
            apply_declarations(DECLARATIONS_AT_ONCE, self._put_off)
        except Exception:  # the next round tries again
            logger.exception("declarations could not be applied")
