"""Pure: a lane as dispatch reads it. What its limits leave, why it cannot go, how fast it frees its slots.

Bucket and day count are in the lane's row, written by the pass that hands over; so they are exact, whoever decides
for the pool next. A bucket or a day from the future was written before the database's clock was set back.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from typing import NamedTuple
from uuid import UUID

from runs.shares import LaneLoad
from scheduler_project.sdk.batches import BATCH_SECONDS, MOST_AT_ONCE

NO_LIVE_WORKER = "no live worker"
DAILY_QUOTA = "daily quota"
MAX_RUNNING = "limit of running runs"
RATE_LIMIT = "rate limit"
# How fast a lane frees slots is measured over so long: what it frees soon, and whether it does so all the time.
TURNOVER_SECONDS = 0.3
QUICK_SECONDS = 1.0
QUICK_PER_SECOND = 2.0
# What a team's own workers began is remembered for so long: those without permits take a second or two to claim more.
OWN_SECONDS = 5.0
# A lane that was given room before the slots of all, and had runs for its own workers alone, would not take room that
# others gave back: for so long nothing is recalled for its sake.
KEEPS_TO_OWN_SECONDS = 5.0
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

    def refund_tokens(self, count: int, now: datetime) -> "LaneRow":
        """So many of those that the rate limit let go were recalled."""
        if self.rate_limit is None:
            return self
        return self._replace(tokens=self.bucket(now) + count, tokens_at=now)

    def uncount(self, count: int, now: datetime) -> "LaneRow":
        """Of what was counted today so many came back before anybody had claimed them."""
        return self._replace(day=day_of(now), day_count=max(0, self.counted(now) - count))


def counted_today(day: date | None, day_count: int, now: datetime) -> int:
    return day_count if day == day_of(now) else 0


def day_of(now: datetime) -> date:
    return now.astimezone(timezone.utc).date()


class Seen(NamedTuple):
    """What a look saw since the one before."""

    at: float
    ended: int
    # Of these, as many as ended in the last TURNOVER_SECONDS if they ended evenly.
    freed: int
    slot_seconds: float


@dataclass(slots=True)
class LaneMemory:
    """What the dispatcher remembers of a lane: how fast it frees its slots, and what it had of them by weight."""

    served: float
    occupied: int = 0
    # Of the last second.
    seen: deque[Seen] = field(default_factory=deque)
    # Slots of its own workers at work: at the looks of the last seconds, and at one before this. Of a lane without such
    # workers nothing: most have none, and every pass looks at all.
    own_at_work: deque[tuple[float, int]] = field(default_factory=deque)
    # Twice what it ended, if nothing was left in its queue while more was ready: so much might not be too much.
    ran_dry: int = 0
    # How many runs that may not go lay before those that may: so far is read beyond what goes.
    depth: int = 0
    # When it was given room before the slots of all, and had no runs but for its own workers.
    kept_to_own_at: float = -math.inf
    # Rank and id up to which its best were read, when none that was read has work for the slots of all.
    read_to: tuple[int, UUID] | None = None

    def look(self, at: float, since: float, load: LaneLoad) -> None:
        if load.has_own_workers or load.own_running or self.own_at_work:
            self._look_at_own(at, since, load)
        held = load.runs
        ended, slot_seconds = max(0, self.occupied - held), load.running * (at - since)
        freed = int(ended * TURNOVER_SECONDS / max(TURNOVER_SECONDS, at - since))
        self.seen.append(Seen(at, ended, freed, slot_seconds))
        # What is from the future was seen before the clock was set back.
        while not at - QUICK_SECONDS <= self.seen[0].at <= at:
            self.seen.popleft()
        # What it had of its own workers is nobody else's.
        self.served += (load.running - load.own_running) * (at - since) / load.weight
        self.occupied = held
        self.ran_dry = 2 * ended if load.ready and not load.queued else 0

    def _look_at_own(self, at: float, since: float, load: LaneLoad) -> None:
        looks = self.own_at_work
        if self.seen and not looks:
            # At the look before none was at work.
            looks.append((since, 0))
        looks.append((at, load.own_running))
        while len(looks) > 2 and not at - OWN_SECONDS <= looks[0][0] <= at:
            looks.popleft()
        if not load.has_own_workers and not any(count for _, count in looks):
            looks.clear()

    def ended_lately(self) -> int:
        return sum(seen.ended for seen in self.seen)

    def per_place(self) -> int:
        """As many runs as a worker claims at once, and no more than it has lately ended: what ran in no look at all may
        have been short by chance."""
        ended, slot_seconds = self.ended_lately(), sum(seen.slot_seconds for seen in self.seen)
        most = min(MOST_AT_ONCE, ended)
        return max(1, min(most, int(BATCH_SECONDS * ended / slot_seconds)) if slot_seconds else most)

    def freed_per_second(self, at: float, seconds: float) -> float:
        return sum(seen.freed for seen in self.seen if seen.at >= at - seconds) / seconds


class LaneMemories(dict[int, LaneMemory]):
    """Of a pool's lanes, by tenant, as of the last look."""

    looked_at = 0.0

    def look(self, loads: Mapping[int, LaneLoad], at: float) -> None:
        """Tells each load what is remembered of its lane."""
        # After a clock that was set back nobody has had less than nothing.
        since, self.looked_at = min(self.looked_at or at, at), at
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
            load.ended_lately, load.per_place = memory.ended_lately(), memory.per_place()
            load.keeps_to_own = abs(at - memory.kept_to_own_at) < KEEPS_TO_OWN_SECONDS
            load.quick = memory.freed_per_second(at, QUICK_SECONDS) >= QUICK_PER_SECOND
