"""What the scheduler's three loops do over and over, each on the lock session it was begun with."""

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections

from jobs.declarations import apply_declarations
from jobs.models import JOB_SLICES
from jobs.rearming import rearm_calendars
from jobs.resuming import resume_due_jobs
from runs import redrives, upkeep
from runs.brokers import queue_version
from runs.catch_up import MOST_JOBS, CaughtUp, catch_up_once
from runs.dispatch import Dispatched, PoolMemory, dispatch_pool
from runs.holding import Holding
from runs.pace import Pace
from runs.publish import Publishers
from runs.queries import change, rows
from runs.rescue import Rescued, RescueMemory, rescue_once
from runs.run_requests import apply_requests
from runs.slices import JOBS, POOLS, RESCUE, LockSession, LostLocks
from runs.trigger import NoPartition, Triggered, trigger_due

logger = logging.getLogger(__name__)

PASS_SECONDS = 0.1
TRIGGER_SECONDS = 0.05
IDLE_SECONDS = 0.25
CATCH_UP_SECONDS = 0.25
TRIGGER_BATCH = 2000
# Windows are full: their turnover is queued further ahead than this.
FULL_SECONDS = 0.05
# A pass costs what it costs, however little it hands over: after a small one so long runs gather for the next.
GATHER_SECONDS = 0.02
SMALL_PASS = 500
RESCUE_SECONDS = 0.25
DECLARATIONS_SECONDS = 1.0
DECLARATIONS_AT_ONCE = 20
RESUMES_SECONDS = 0.5
CALENDARS_SECONDS = 0.5
REDRIVES_SECONDS = 0.5
DAY_SECONDS = 86_400.0


class Triggering(Holding):
    """At most one pass each TRIGGER_SECONDS; while nothing is due, an index probe shortly before the next time."""

    def __init__(self, session: LockSession, pace: Pace, runs_are_ready: Callable[[], None]) -> None:
        super().__init__(session, JOBS, range(JOB_SLICES))
        self.pace = pace
        self.runs_are_ready = runs_are_ready
        self.catch_up_pace = Pace("catch-up", MOST_JOBS)
        self._caught_up_at = 0.0
        self._more = False

    def step(self) -> float:
        started = time.monotonic()
        self.balance()
        held = sorted(self.slices.held)
        now, due_at = self._next_due(held)
        if due_at is not None and due_at <= now:
            done = self._trigger(held, now)
            self._more = done.more
            if done.runs:
                self.runs_are_ready()
            if done.more:
                return 0.0
            pause = started + TRIGGER_SECONDS - time.monotonic()
        else:
            pause = IDLE_SECONDS if due_at is None else min(IDLE_SECONDS, (due_at - now).total_seconds())
        return max(0.0, min(pause, self._catch_up(held, now)))

    def _next_due(self, held: list[int]) -> tuple[datetime, datetime | None]:
        """What time it is, and when something is due. Amid a spike the last pass knows; the probe would step over
        every entry of the index that was left behind by a clock which has moved on."""
        if self._more:
            now = self.now()
            return now, now
        pid, now, due_at = rows(self.session.connection, "next_due", {"slices": held})[0]
        if pid != self.session.pid:
            raise LostLocks(LostLocks.__doc__)
        return now, due_at

    def _catch_up(self, held: list[int], now: datetime) -> float:
        """What was missed yields to what is due: a bounded step, only while nothing more is due by now."""
        pause = self._caught_up_at + CATCH_UP_SECONDS - time.monotonic()
        if pause > 0:
            return pause
        done = CaughtUp(now)
        with self.catch_up_pace.one_pass():
            done = catch_up_once(self.session.connection, held, self.session.pid, self.catch_up_pace.size)
        if done.runs:
            self.runs_are_ready()
        if not done.more:
            self._caught_up_at = time.monotonic()
        return 0.0 if done.more else CATCH_UP_SECONDS

    def _trigger(self, held: list[int], now: datetime) -> Triggered:
        done = Triggered(now, more=True)
        # A pass takes at least one job of each slice: fewer jobs than slices are those of some slices.
        some = held if self.pace.size >= len(held) else random.sample(held, self.pace.size)
        try:
            with self.pace.one_pass():
                done = trigger_due(self.session.connection, some, self.pace.size, self.session.pid)
        except NoPartition:
            logger.critical("ALARM: there is no partition for a planned time")
            upkeep.keep_partitions(self.session.connection, now)
            raise
        return done


class Dispatching(Holding):
    """A pass over each pool held that has ready runs; what it marked is offered to its publisher afterwards."""

    def __init__(self, session: LockSession, publishers: Publishers) -> None:
        super().__init__(session, POOLS, [])
        self.publishers = publishers
        # The name of each pool's broker, and of those taken over the one that was taken.
        self.brokers: dict[int, str] = {}
        self._taken: dict[int, str] = {}
        self.memories: dict[int, PoolMemory] = {}
        self._busy: set[int] = set()
        self._not_before = 0.0

    def _look_around(self) -> None:
        self.brokers = dict(rows(self.session.connection, "pools"))
        self.slices.universe = set(self.brokers)

    def step(self) -> float:
        time.sleep(max(0.0, self._not_before - time.monotonic()))
        self.balance()
        wanted = {pool: self.brokers[pool] for pool in self.slices.held}
        if wanted != self._taken:
            self._take_over(wanted)
        held = {"pools": sorted(self.slices.held)}
        ready = {pool for (pool,) in rows(self.session.connection, "pools_with_ready_runs", held)}
        # A pool whose last ready run is gone gets one more look, so that its lanes show no stale reason.
        looked_at = sorted(ready | (self._busy & self.slices.held))
        self._busy = ready
        return min((self._dispatch(pool) for pool in looked_at), default=PASS_SECONDS)

    def _take_over(self, brokers: dict[int, str]) -> None:
        """Pools came or went, or one of them moved to another broker."""
        self.memories = {pool: self.memories.get(pool, PoolMemory()) for pool in brokers}
        versions = [queue_version(broker) for broker in brokers.values()]
        change(self.session.connection, "rename_lanes", {"pools": list(brokers), "versions": versions})
        queues = defaultdict(set)
        for pool, queue in rows(self.session.connection, "queues_of_pools", {"pools": list(brokers)}):
            queues[brokers[pool]].add(queue)
        self.publishers.declare_only(queues)
        self._taken = brokers

    def _dispatch(self, pool: int) -> float:
        broker = self._taken[pool]
        started = time.monotonic()
        notice = self.publishers.notice(broker)
        memory, done = self.memories[pool], Dispatched(waiting=True)
        with memory.pace.one_pass():
            done = dispatch_pool(self.session.connection, pool, self.now(), memory, notice)
        self.publishers.declare(broker, done.queues)
        self.publishers.offer(broker, done.permits)
        if done.queued < SMALL_PASS:
            self._not_before = time.monotonic() + GATHER_SECONDS
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
        self._requests_put_off: set[UUID] = set()
        upkeep.keep_partitions(session.connection, self.now())

    def step(self) -> float:
        self.balance()
        if not self.slices.held:
            return IDLE_SECONDS
        now = self.now()
        done = Rescued()
        with self.memory.pace.one_pass():
            done = rescue_once(self.session.connection, self.memory, now)
        if done.promoted or done.retried or done.released:
            self.runs_are_ready()
        if self.memory.is_due("declarations", DECLARATIONS_SECONDS, now):
            apply = partial(apply_declarations, DECLARATIONS_AT_ONCE, self._put_off)
            self._serve("declarations_wait", apply, "declarations could not be applied")
            answer = partial(apply_requests, put_off=self._requests_put_off)
            self._serve("run_requests_wait", answer, "requests for runs could not be carried out")
        if self.memory.is_due("resumes", RESUMES_SECONDS, now):
            self._serve("pauses_are_over", resume_due_jobs, "paused jobs could not be resumed")
        if self.memory.is_due("calendars", CALENDARS_SECONDS, now):
            self._serve("calendars_wait", rearm_calendars, "clocks could not follow their calendars")
        if self.memory.is_due("redrives", REDRIVES_SECONDS, now):
            self._serve("redrives_are_due", self._redrive, "dead runs could not be redriven")
        if self.memory.is_due("upkeep", DAY_SECONDS, now):
            self._keep_up(now)
        return RESCUE_SECONDS

    def _serve(self, question: str, act: Callable[[], Any], failed: str) -> None:
        """Acts if the statement `question` says that there is something to do. Through the same services as
        everybody's, so on Django's connection; its troubles are not rescue's."""
        if not rows(self.session.connection, question)[0][0]:
            return
        try:
            close_old_connections()
            act()
        except Exception:  # the next round tries again
            logger.exception("%s", failed)

    def _redrive(self) -> None:
        if redrives.work_off():
            self.runs_are_ready()

    def _keep_up(self, now: datetime) -> None:
        session = self.session.connection
        upkeep.keep_partitions(session, now)
        upkeep.forget_nodes(session, now)
        upkeep.forget_schedulers(session, now)
        upkeep.forget_letters(session, now)
        upkeep.forget_run_requests(session, now)
        upkeep.analyze_in_background(settings.DATABASE_DIRECT_URL)
