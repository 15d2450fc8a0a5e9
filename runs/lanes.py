"""Pure: a lane as dispatch reads it. What its limits leave, why it cannot go, how fast it frees its slots.

Bucket and day count are in the lane's row, written by the pass that hands over; so they are exact, whoever decides
for the pool next. A bucket or a day from the future was written before the database's clock was set back.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import NamedTuple

from runs.shares import LaneLoad

NO_LIVE_WORKER = "no live worker"
DAILY_QUOTA = "daily quota"
MAX_RUNNING = "limit of running runs"
RATE_LIMIT = "rate limit"
# How fast a lane frees slots is measured over so long: what it frees soon, and whether it does so all the time.
TURNOVER_SECONDS = 0.3
QUICK_SECONDS = 1.0
QUICK_PER_SECOND = 2.0
# How far ahead a lane's turnover is queued, also in a pool so large that each look is slow. What is queued is claimed
# as soon as any slot is free, whosever share that is: the further ahead, the less the shares hold.
LOOK_AHEAD_SECONDS = 0.1
LOOKS_AHEAD = 2.0
LONGEST_LOOK_AHEAD_SECONDS = 2.0


class LaneRow(NamedTuple):
    tenant_id: int
    slug: str
    weight: int
    max_running: int | None
    rate_limit: float | None
    daily_quota: int | None
    lane_id: int | None
    queue: str
    tokens: float | None
    tokens_at: datetime | None
    day: date | None
    day_count: int
    reason: str
    window: int
    allowed: bool

    @property
    def limited(self) -> bool:
        return not (self.max_running is self.rate_limit is self.daily_quota is None)

    def room(self, occupied: int, now: datetime) -> int | None:
        """How many runs its own limits leave. None: it has no limits."""
        rooms = []
        if self.max_running is not None:
            rooms.append(self.max_running - occupied)
        if self.daily_quota is not None:
            rooms.append(self.daily_quota - self.counted(now))
        if self.rate_limit is not None:
            rooms.append(int(self.bucket(now)))
        return max(0, min(rooms)) if rooms else None

    def limit_reached(self, occupied: int, now: datetime) -> str:
        """Which limit leaves nothing; of several the one that will last longest."""
        if self.daily_quota is not None and self.counted(now) >= self.daily_quota:
            return DAILY_QUOTA
        if self.max_running is not None and occupied >= self.max_running:
            return MAX_RUNNING
        if self.rate_limit is not None and self.bucket(now) < 1:
            return RATE_LIMIT
        return ""

    def bucket(self, now: datetime) -> float:
        """A second's worth of the rate at most, and never less than one run."""
        assert self.rate_limit is not None  # noqa: S101 - asked of limited lanes only
        burst = max(1.0, self.rate_limit)
        if self.tokens is None or self.tokens_at is None or self.tokens_at > now:
            return burst
        return min(burst, self.tokens + self.rate_limit * (now - self.tokens_at).total_seconds())

    def counted(self, now: datetime) -> int:
        """Runs handed over on this day."""
        return counted_today(self.day, self.day_count, now)

    def spend(self, count: int, now: datetime) -> "LaneRow":
        lane = self
        if count and self.rate_limit is not None:
            lane = lane._replace(tokens=self.bucket(now) - count, tokens_at=now)
        if count and self.daily_quota is not None:
            lane = lane._replace(day=day_of(now), day_count=self.counted(now) + count)
        return lane

    def take_back(self, count: int, now: datetime) -> "LaneRow":
        """Of what was counted today so many came back before anybody had claimed them."""
        return self._replace(day=day_of(now), day_count=max(0, self.counted(now) - count))


def counted_today(day: date | None, day_count: int, now: datetime) -> int:
    return day_count if day == day_of(now) else 0


def day_of(now: datetime) -> date:
    return now.astimezone(timezone.utc).date()


@dataclass(slots=True)
class LaneMemory:
    """What the dispatcher remembers of a lane: how fast it frees its slots, and what it had of them by weight."""

    served: float
    occupied: int = 0
    freed: deque[tuple[float, int]] = field(default_factory=deque)
    # Nothing was left of what it was given while more was there: twice what it ended might not be too much.
    ran_dry: int = 0
    # How many runs that may not go lay before those that may: so far is read beyond what goes.
    depth: int = 0

    def look(self, at: float, since: float, load: LaneLoad) -> None:
        held = load.runs
        ended = self.occupied - held
        if ended > 0:
            # Of a look that was long ago, what ended in the last of it.
            self.freed.append((at, int(ended * min(1.0, TURNOVER_SECONDS / (at - since)))))
        while self.freed and self.freed[0][0] < at - QUICK_SECONDS:
            self.freed.popleft()
        self.served += load.running * (at - since) / load.weight
        self.occupied = held
        self.ran_dry = 2 * max(0, ended) if load.ready and not load.queued else 0

    def freed_per_second(self, at: float, seconds: float) -> float:
        if not self.freed:
            return 0.0
        return sum(count for then, count in self.freed if then >= at - seconds) / seconds


class LaneMemories(dict[int, LaneMemory]):
    """Of a pool's lanes, by tenant, as of the last look."""

    looked_at = 0.0

    def look(self, loads: Mapping[int, LaneLoad], at: float) -> None:
        """Tells each load what is remembered of its lane."""
        since, self.looked_at = self.looked_at or at, at
        # A lane that comes back starts where the least served one is: nobody saves up shares while idle, and
        # nobody pays for slots that were idle otherwise.
        floor = min((self[tenant].served for tenant in loads if tenant in self), default=0.0)
        for tenant in self.keys() - loads.keys():
            del self[tenant]
        ahead = min(LONGEST_LOOK_AHEAD_SECONDS, max(LOOK_AHEAD_SECONDS, LOOKS_AHEAD * (at - since)))
        # Whoever waits beside others would get their slots by what is too much.
        alone = sum(load.ready or load.queued > 0 for load in loads.values()) == 1
        for tenant, load in loads.items():
            memory = self.get(tenant)
            if memory is None:
                memory = self[tenant] = LaneMemory(floor)
            memory.look(at, since, load)
            load.served = memory.served
            load.turnover = memory.freed_per_second(at, TURNOVER_SECONDS) * ahead
            if alone:
                load.turnover = max(load.turnover, memory.ran_dry)
            load.quick = memory.freed_per_second(at, QUICK_SECONDS) >= QUICK_PER_SECOND
