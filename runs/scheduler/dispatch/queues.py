"""Read a queue's limits: what they leave, and why the queue cannot go. Pure.

Bucket and day count are in the queue's row, written by the pass that hands over, so they are exact for the next
decider. A bucket or a day from the future was written before the database's clock was set back.
"""

from collections.abc import Iterator
from datetime import date, datetime, timezone
from typing import NamedTuple

from runs.reasons import Reason


class QueueRow(NamedTuple):
    tenant_id: int
    slug: str
    weight: int
    max_running: int | None
    rate_limit: float | None
    daily_quota: int | None
    queue_id: int | None
    broker_queue: str
    tokens: float | None
    tokens_at: datetime | None
    day: date | None
    day_count: int
    reason: str
    queued: int
    allowed: bool

    @property
    def limited(self) -> bool:
        return not (self.max_running is self.rate_limit is self.daily_quota is None)

    def room(self, occupied: int, now: datetime) -> int | None:
        """Return how many runs its own limits leave; None without limits."""
        rooms = [room for _limit, room in self._rooms(occupied, now)]
        return max(0, min(rooms)) if rooms else None

    def limit_reached(self, occupied: int, now: datetime) -> str:
        """Return the limit that leaves nothing; of several the one that will last longest."""
        return next((limit for limit, room in self._rooms(occupied, now) if room < 1), "")

    def _rooms(self, occupied: int, now: datetime) -> Iterator[tuple[Reason, int]]:
        """Yield what each limit leaves, the one that lasts longest first."""
        if self.daily_quota is not None:
            yield Reason.DAILY_QUOTA, self.daily_quota - self.counted(now)
        if self.max_running is not None:
            yield Reason.MAX_RUNNING, self.max_running - occupied
        if self.rate_limit is not None:
            yield Reason.RATE_LIMIT, int(self.bucket(now))

    def bucket(self, now: datetime) -> float:
        """Return the tokens: at most a second's worth of the rate, and never less than one run's."""
        assert self.rate_limit is not None  # noqa: S101 - called for limited queues only
        burst = max(1.0, self.rate_limit)
        if self.tokens is None or self.tokens_at is None or self.tokens_at > now:
            return burst
        return min(burst, self.tokens + self.rate_limit * (now - self.tokens_at).total_seconds())

    def counted(self, now: datetime) -> int:
        """Return the runs handed over on this day."""
        return counted_today(self.day, self.day_count, now)

    def spend(self, count: int, now: datetime) -> "QueueRow":
        queue = self
        if count and self.rate_limit is not None:
            queue = queue._replace(tokens=self.bucket(now) - count, tokens_at=now)
        if count and self.daily_quota is not None:
            queue = queue._replace(day=day_of(now), day_count=self.counted(now) + count)
        return queue

    def refund_tokens(self, count: int, now: datetime) -> "QueueRow":
        """Give back the tokens of runs that were recalled."""
        if self.rate_limit is None:
            return self
        return self._replace(tokens=self.bucket(now) + count, tokens_at=now)

    def uncount(self, count: int, now: datetime) -> "QueueRow":
        """Take runs that came back before they were claimed out of the day's count."""
        return self._replace(day=day_of(now), day_count=max(0, self.counted(now) - count))


def counted_today(day: date | None, day_count: int, now: datetime) -> int:
    return day_count if day == day_of(now) else 0


def day_of(now: datetime) -> date:
    return now.astimezone(timezone.utc).date()
