"""Promote delayed runs, expire silent workers, fail lost attempts, unblock runs: one pass of recovery.

One scheduler at a time does it. It may be late and must never be early: a run is taken from a worker only when the
worker cannot be working on it any more, and after an outage of our own every worker gets a lease of grace.
"""

import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta, timezone

from django.conf import settings

from runs import transitions
from runs.events import RunsReleased, emit
from runs.ledger import callbacks
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.recovery.dead_runs import DeadRunRound
from runs.scheduler.recovery.expiry import PresentWorker, expire_workers
from runs.scheduler.recovery.lost_attempts import reclaim
from runs.scheduler.recovery.retry_budget import let_retries_go
from runs.scheduler.recovery.unblock import SWEEP_SECONDS, Sweep, sweep_blocked
from runs.sql import Connection

CLAIMS_SECONDS = 1.0
# Longer without a successful pass, and heartbeats may not have been flowing either.
MAX_GAP_SECONDS = 10.0
MAX_AT_ONCE = 500
MAX_PROMOTION_SECONDS = 0.3
NEVER = datetime.max.replace(tzinfo=timezone.utc)


@dataclass(slots=True)
class RecoveryMemory:
    """Kept from pass to pass by the scheduler that recovers. A new one trusts nothing for one lease."""

    trusted_from: datetime = NEVER
    last_pass: datetime | None = None
    last_done: dict[str, datetime] = field(default_factory=dict)
    sweep: Sweep = field(default_factory=Sweep)
    dead_runs: DeadRunRound = field(default_factory=DeadRunRound)
    batch: BatchSize = field(default_factory=lambda: BatchSize("recovery", MAX_AT_ONCE))

    def begin(self, now: datetime) -> None:
        max_gap = timedelta(seconds=min(MAX_GAP_SECONDS, settings.LEASE_SECONDS / 2))
        if self.last_pass is None or now - self.last_pass > max_gap:
            self.trusted_from = now + lease()

    def last_beat(self, worker: PresentWorker) -> datetime:
        """Return its last heartbeat, or the end of our own outage: until then none could arrive, whatever its lease."""
        return max(worker.last_beat_at, self.trusted_from - lease())

    def is_due(self, what: str, seconds: float, now: datetime) -> bool:
        last = self.last_done.get(what)
        # A clock that was set back would make everything wait until it has caught up.
        if last is not None and timedelta(0) <= now - last < timedelta(seconds=seconds):
            return False
        self.last_done[what] = now
        return True


@dataclass(slots=True)
class Recovered:
    promoted: int = 0
    # Of them and of earlier ones, those that the budgets of their tenants let go.
    retried: int = 0
    held_workers: int = 0
    lost_workers: int = 0
    lost_attempts: int = 0
    missed_callbacks: int = 0
    # Queued runs that go back to dispatch, because no living worker knows their target.
    withdrawn: int = 0
    released: int = 0

    def counts(self) -> dict[str, int]:
        return asdict(self)


def recover_once(connection: Connection, memory: RecoveryMemory, now: datetime) -> Recovered:
    """Do one pass; each step is a short transaction of its own.

    1. Promote what waited long enough; retries beyond their tenant's budget wait on.
    2. Once a lease has passed since an outage of our own: expire the workers that kept silent for theirs, then fail the
       attempts that no worker works on and those whose callback did not come.
    3. Look again at what is blocked.
    """
    done = Recovered()
    memory.begin(now)
    done.promoted = _promote(connection, now, memory.batch.size)
    done.retried = let_retries_go(connection, now, memory.batch.size)
    if now >= memory.trusted_from:
        done.held_workers, done.lost_workers = expire_workers(connection, memory.last_beat, now)
        if memory.is_due("claims", CLAIMS_SECONDS, now):
            done.lost_attempts = reclaim(connection, now, memory.batch.size)
            done.missed_callbacks = callbacks.give_up(connection, now, memory.batch.size)
    if memory.is_due("blocked", SWEEP_SECONDS, now):
        memory.sweep.begin()
        done.withdrawn = transitions.withdraw_unknown(connection, now, settings.LEASE_SECONDS)
    done.released = sweep_blocked(connection, memory.sweep, now, memory.batch.size)
    memory.last_pass = now
    if done.promoted or done.retried or done.released:
        emit(RunsReleased(promoted=done.promoted, retried=done.retried, released=done.released))
    return done


def _promote(connection: Connection, now: datetime, most: int) -> int:
    """Promote all that is due, as far as the time of a pass goes: a flexible window makes many due at once."""
    until = time.monotonic() + MAX_PROMOTION_SECONDS
    promoted = count = transitions.promote_delayed(connection, now, most)
    while count == most and time.monotonic() < until:
        count = transitions.promote_delayed(connection, now, most)
        promoted += count
    return promoted


def lease() -> timedelta:
    return timedelta(seconds=settings.LEASE_SECONDS)
