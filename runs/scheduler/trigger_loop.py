"""Trigger due jobs of the slices held, and make up for missed times while nothing is due."""

import logging
import random
import time
from collections.abc import Callable
from datetime import datetime

from jobs.models import JOB_SLICES
from runs.events import PartitionMissing, emit
from runs.scheduler import maintenance
from runs.scheduler.catch_up.catch_up import MAX_JOBS, catch_up_once
from runs.scheduler.catch_up.caught_up import CaughtUp
from runs.scheduler.observer import PassKind
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.partitions.lock_session import JOBS, LockSession, refuse_other_session
from runs.scheduler.partitions.share import SliceHolder
from runs.scheduler.scan_pace import ScanPace
from runs.scheduler.trigger.trigger import NoPartition, Triggered, trigger_due
from runs.sql import rows
from scheduler_project.sdk.ids import EPOCH

logger = logging.getLogger(__name__)

TRIGGER_SECONDS = 0.05
IDLE_SECONDS = 0.25
CATCH_UP_SECONDS = 0.25
TRIGGER_BATCH = 2000


class TriggerLoop(SliceHolder):
    """At most one pass each TRIGGER_SECONDS; while nothing is due, an index probe shortly before the next time."""

    def __init__(
        self,
        session: LockSession,
        batch: BatchSize,
        runs_are_ready: Callable[[], None],
        catch_up_batch: BatchSize | None = None,
    ) -> None:
        super().__init__(session, JOBS, range(JOB_SLICES))
        self.batch = batch
        self.runs_are_ready = runs_are_ready
        self.catch_up_batch = catch_up_batch or BatchSize("catch-up", MAX_JOBS)
        self._caught_up_at = 0.0
        self._more = False
        # No clock of the slices held is due before this, as far as passes have seen.
        self._since = EPOCH
        self._pace = ScanPace()

    def step(self) -> float:
        started = time.monotonic()
        if self.balance():
            self._since = EPOCH
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
        """Return the database's time, and when the next job is due.

        A clock that an edit moves before `_since` is found by the next scan from the beginning.
        """
        if self._more:
            # Amid a spike the last pass knows. The probe would step over every index entry left behind by a clock
            # that has moved on.
            if self._pace.is_due(time.monotonic()):
                self._pace.note(time.monotonic(), self._pace.seconds)
                self._since = EPOCH
            now = self.now()
            return now, now
        began = time.monotonic()
        if full := self._pace.is_due(began):
            self._since = EPOCH
        values = {"slices": held, "since": self._since}
        pid, now, due_at = rows(self.session.connection, "next_due", values)[0]
        refuse_other_session(pid, self.session.pid)
        if full:
            self._pace.note(time.monotonic(), time.monotonic() - began)
        self._since = min(now, due_at or now)
        return now, due_at

    def _trigger(self, held: list[int], now: datetime) -> Triggered:
        began = time.monotonic()
        done = Triggered(now, more=True)
        # A pass takes at least one job of each slice, so a batch smaller than the slices takes some of the slices.
        some = held if self.batch.size >= len(held) else random.sample(held, self.batch.size)
        try:
            with self.batch.one_pass():
                done = trigger_due(
                    self.session.connection, some, self.batch.size, self.session.pid, self._since
                )
        except NoPartition:
            emit(PartitionMissing())
            maintenance.keep_partitions(self.session.connection, now)
            raise
        self.finish_pass(PassKind.TRIGGER, done, began)
        return done

    def _catch_up(self, held: list[int], now: datetime) -> float:
        """Take one bounded step of catching up; it yields to what is due, so it runs only when nothing more is."""
        pause = self._caught_up_at + CATCH_UP_SECONDS - time.monotonic()
        if pause > 0:
            return pause
        began = time.monotonic()
        done = CaughtUp(now)
        with self.catch_up_batch.one_pass():
            done = catch_up_once(self.session.connection, held, self.session.pid, self.catch_up_batch.size)
        self.finish_pass(PassKind.CATCH_UP, done, began)
        if done.runs:
            self.runs_are_ready()
        if not done.more:
            self._caught_up_at = time.monotonic()
        return 0.0 if done.more else CATCH_UP_SECONDS
