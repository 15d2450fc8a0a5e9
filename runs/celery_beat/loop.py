"""Serve the periodic tasks of django-celery-beat, one pass after the other."""

import logging
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from runs.celery_beat.due_tasks import SLICES, Tasks
from runs.celery_beat.firings import GONE, MAX_TRIES, MAYBE_LOST, MAYBE_TWICE, Firings
from runs.celery_beat.publisher import Away, CeleryPublisher, Undelivered, Unsendable
from runs.celery_beat.schedules import Disable, Fire, Task, Wait, decide
from runs.celery_beat.source import Source, prepare
from runs.scheduler.partitions.lock_session import CELERY, LockSession
from runs.scheduler.partitions.share import SliceHolder
from runs.states import FiringState

logger = logging.getLogger(__name__)

GLANCE_SECONDS = 0.4
MAX_PAUSE = 0.25
OPEN_SECONDS = 1.0
BROKER_SECONDS = 0.5
FORGET_SECONDS = 60.0
# When a row that another session holds is tried again.
AGAIN = timedelta(seconds=0.2)
MAX_CLAIMED = 100
# Published between two writes: so many may have arrived, unknown to us, when a scheduler is killed.
MAX_PUBLISHING = 20
# A scheduler that was stopped amid a few messages sends no more of them: by then another has taken them over.
PUBLISHING_SECONDS = 1.0


class CeleryBeatLoop(SliceHolder):
    def __init__(self, session: LockSession, source: Source, publisher: CeleryPublisher) -> None:
        prepare(session.connection)
        super().__init__(session, CELERY, range(SLICES))
        self.source = source
        self.publisher = publisher
        self.tasks = Tasks(session.connection)
        self.firings = Firings(session.connection, resend=source.resend)
        self.deadline = publisher.app.conf.beat_cron_starting_deadline
        self._glanced_at = self._opened_at = self._forgot_at = 0.0

    def step(self) -> float:
        """Make one pass.

        1. Read what others have changed since the last one.
        2. Send what is open: left by a scheduler that died, or by a broker that went away.
        3. Claim what is due and send it; while the broker does not answer nothing is claimed, and stays due.
        """
        if self.balance():
            self.tasks.hold(self.slices.held)
            self._glanced_at = self._opened_at = 0.0
        self._glance()
        now = self.now()
        self._forget(now)
        own, others = self._open()
        due = self._waits_until(now) <= 0
        if not (own or others or due):
            return self._pause(now)
        if not self.publisher.is_ready():
            return BROKER_SECONDS
        ready = own + (self.firings.take_over(others) if others else [])
        # What is in doubt is settled first: while the broker comes and goes, nothing piles up behind it.
        if self._send(ready) and due:
            self._send(self._claim(self.now()))
        return self._pause(now)

    def _glance(self) -> None:
        started = time.monotonic()
        if started - self._glanced_at < GLANCE_SECONDS or not self.slices.held:
            return
        if read := self.tasks.glance():
            logger.debug("%d periodic tasks were read", read)
        if self.tasks.refused:
            self.firings.refuse(self.tasks.refused)
            self.tasks.refused = {}
        self._glanced_at = time.monotonic()

    def _open(self) -> tuple[list[int], list[int]]:
        if time.monotonic() - self._opened_at < OPEN_SECONDS or not self.slices.held:
            return [], []
        own, others = self.firings.open(self.slices.held)
        # More than one look shows: the next pass looks at once.
        self._opened_at = 0.0 if own or others else time.monotonic()
        return own, others

    def _waits_until(self, now: datetime) -> float:
        at = self.tasks.next_at()
        return MAX_PAUSE if at is None else (at - now).total_seconds()

    def _pause(self, now: datetime) -> float:
        return max(0.0, min(MAX_PAUSE, self._waits_until(now)))

    def _claim(self, now: datetime) -> list[int]:
        """Claim what is due and return the firings to send now."""
        decisions = list[tuple[Task, Fire | Disable]]()
        for task in self.tasks.due(now, MAX_CLAIMED):
            with self.tasks.refusing(task):
                decision = decide(task, now, self.deadline)
                if not isinstance(decision, Wait):
                    decisions.append((task, decision))
                elif decision.until is not None:
                    self.tasks.take(task, decision.until)
        claimed = {done.task_id: done for done in self.firings.claim(decisions)} if decisions else {}
        for task, _ in decisions:
            if (done := claimed.get(task.id)) is None:
                # Another session has its row, or changed it: by then it will be read again.
                self.tasks.take(task, now + AGAIN)
                self._glanced_at = 0.0
                continue
            task.version, task.enabled = done.version, done.enabled
            task.last_run_at, task.run_count = done.last_run_at, done.run_count
            self.tasks.take(task)
        return [done.firing for done in claimed.values() if done.firing is not None]

    def _send(self, firings: Sequence[int]) -> bool:
        """Send firings and return whether all are settled; a few at a time, so that a crash leaves few in doubt."""
        for start in range(0, len(firings), MAX_PUBLISHING):
            if not self._send_some(firings[start : start + MAX_PUBLISHING]):
                self._opened_at = 0.0
                return False
        return True

    def _send_some(self, firings: Sequence[int]) -> bool:
        """Send firings and return whether the broker answered for each."""
        # Before they are marked: from then on another may take them over.
        began = time.monotonic()
        messages = self.firings.publish(firings)
        results = dict.fromkeys(firings, GONE)
        results |= {message.id: (FiringState.CLAIMED, "") for message in messages}
        for message in messages:
            if time.monotonic() - began > PUBLISHING_SECONDS:
                break
            try:
                self.publisher.send(message)
                results[message.id] = FiringState.SENT, ""
            except Unsendable as why:
                logger.error("the periodic task %s cannot be sent: %s", message.name, why)
                results[message.id] = FiringState.REFUSED, str(why)
            except Away:
                continue
            except Undelivered as why:
                results[message.id] = self._in_doubt(message, str(why))
        self.firings.settle(results)
        return all(state != FiringState.CLAIMED for state, _ in results.values())

    def _in_doubt(self, message: Any, why: str) -> tuple[FiringState, str]:
        if message.tries + 1 >= MAX_TRIES:
            return FiringState.REFUSED, f"given up after {MAX_TRIES} tries, it may have arrived: {why}"
        if self.source.resend:
            return FiringState.CLAIMED, f"{MAYBE_TWICE}{why}"
        return FiringState.UNKNOWN, f"{MAYBE_LOST}{why}"

    def _forget(self, now: datetime) -> None:
        """Delete old firings, some at a time; one scheduler does it."""
        if 0 not in self.slices.held or time.monotonic() - self._forgot_at < FORGET_SECONDS:
            return
        if self.firings.forget(now - timedelta(days=self.source.keep_days)) == 0:
            self._forgot_at = time.monotonic()

    def end(self) -> None:
        self.publisher.close()
