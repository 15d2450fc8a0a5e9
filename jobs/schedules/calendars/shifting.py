"""Move closed times of a cron pattern to other days, at the same time on the clock.

The search does not go from time to time, which a pattern may have every second. For each day it computes which spans of
which other days move to it, and finds the pattern's first or last match within them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from jobs.schedules.cron.pattern import Pattern
from jobs.schedules.zones import SECOND, first_instant, instants, reading

from .business_hours import (
    DAY,
    DAY_SECONDS,
    EARLIEST_YEAR,
    LATEST_YEAR,
    Spans,
    WorkingTime,
    closed_spans,
    common,
    open_spans,
    wall_of,
)

# A time that is open on none of so many days, not counting days closed by date, is left out.
REACH = 28
# The longest move in days, so that a day after years of closed dates is computed quickly.
MAX_MOVE_DAYS = 400
# The search ends after so many days, or so many with hours: a scheduler that waits for it holds up all other jobs.
MAX_DAYS = 4000
MAX_OPEN_DAYS = 800


@dataclass(frozen=True)
class Moves:
    """Say in which direction closed times move, on which clock, by which working time."""

    working: WorkingTime
    zone: ZoneInfo
    forward: bool

    @property
    def step(self) -> timedelta:
        return DAY if self.forward else -DAY

    @property
    def longest(self) -> timedelta:
        """Return how far a time can move."""
        return min(MAX_MOVE_DAYS, REACH + 1 + len(self.working.closed)) * DAY


def moved(moves: Moves, wall: datetime) -> datetime | None:
    """Return the instant to which one time moves: its own if that is open, or one on another day."""
    passed, first = 0, wall
    while (
        EARLIEST_YEAR <= wall.year <= LATEST_YEAR
        and passed <= REACH
        and abs(wall - first) <= MAX_MOVE_DAYS * DAY
    ):
        instant = first_instant(moves.zone, wall)
        if moves.working.is_open(instant):
            return instant
        passed += wall.date() not in moves.working.closed
        wall += moves.step
    return None


@lru_cache(maxsize=4096)
def sources(moves: Moves, day: date) -> tuple[tuple[date, Spans], ...]:
    """Return which times of which other days move to this one: closed there, and on every day in between."""
    left = open_spans(moves.working, moves.zone, day)
    found = []
    passed, to = 0, day
    while passed < REACH and abs(day - to) < MAX_MOVE_DAYS * DAY:
        day -= moves.step
        still = common(left, closed_spans(moves.working, moves.zone, day))
        # The same object for closed day after closed day, so that the cache stays small.
        left = left if still == left else still
        if not left or not EARLIEST_YEAR <= day.year <= LATEST_YEAR:
            break
        found.append((day, left))
        passed += day not in moves.working.closed
    return tuple(found)


@dataclass(frozen=True)
class Moved:
    """Find times of a pattern that move to other days. `lowest` and `highest` bound where they move from."""

    moves: Moves
    pattern: Pattern
    lowest: datetime
    highest: datetime

    def first_from(self, wall: datetime, last_day: date | None) -> datetime | None:
        """Return the earliest time at or after this one on the clock, if it lies no later than that day."""
        last = min(last_day or date(LATEST_YEAR, 12, 31), self.highest.date() + self.moves.longest)
        for day in self._days(wall.date(), last, forward=True):
            begin = max((wall - wall_of(day, 0)) // SECOND, 0)
            best = None
            for source, low, high in self._spans(day, begin, DAY_SECONDS):
                if best is None or low < best:
                    found = self._first(source, low, high if best is None else min(high, best))
                    best = best if found is None else found
            if best is not None:
                return wall_of(day, best)
        return None

    def last_until(self, wall: datetime, first_day: date) -> datetime | None:
        """Return the latest time up to this one on the clock, if it lies no earlier than that day."""
        for day in self._days(wall.date(), first_day, forward=False):
            end = min((wall - wall_of(day, 0)) // SECOND + 1, DAY_SECONDS)
            best = None
            for source, low, high in self._spans(day, 0, end):
                if best is None or high > best + 1:
                    found = self._last(source, low if best is None else max(low, best + 1), high)
                    best = best if found is None else found
            if best is not None:
                return wall_of(day, best)
        return None

    def _days(self, day: date, last: date, *, forward: bool) -> Iterator[date]:
        """Yield the days to which times may move, up to the last one, or back to it if it does not go forward."""
        opened = 0
        for _ in range(MAX_DAYS):
            if (day > last if forward else day < last) or opened >= MAX_OPEN_DAYS:
                return
            opened += bool(open_spans(self.moves.working, self.moves.zone, day))
            if sources(self.moves, day):
                yield day
            following = self._day_from(day + DAY) if forward else self._day_until(day - DAY)
            if following is None:
                return
            day = following

    def _spans(self, day: date, begin: int, end: int) -> Iterator[tuple[date, int, int]]:
        for source, spans in sources(self.moves, day):
            match = self.pattern.first_from(wall_of(source, 0))
            if match is None or match.date() != source:
                continue
            for low, high in common(spans, ((begin, end),)):
                yield source, low, high

    def _first(self, source: date, begin: int, end: int) -> int | None:
        """Return the first match within a span of a day, as a second of the day."""
        wall = max(wall_of(source, begin), self.lowest)
        last = min(wall_of(source, end) - SECOND, self.highest)
        while wall <= last and (match := self.pattern.first_from(wall)) is not None and match <= last:
            if self._exists(match):
                return (match - wall_of(source, 0)) // SECOND
            wall = reading(self.moves.zone, first_instant(self.moves.zone, match))
        return None

    def _last(self, source: date, begin: int, end: int) -> int | None:
        first = max(wall_of(source, begin), self.lowest)
        wall = min(wall_of(source, end) - SECOND, self.highest)
        while wall >= first and (match := self.pattern.last_until(wall)) is not None and match >= first:
            if self._exists(match):
                return (match - wall_of(source, 0)) // SECOND
            wall = reading(self.moves.zone, first_instant(self.moves.zone, match) - SECOND)
        return None

    def _exists(self, match: datetime) -> bool:
        """Say whether the clock shows a match; a pattern of elapsed time has no times in a gap (occurrences)."""
        return not self.pattern.interval_like or bool(instants(self.moves.zone, match))

    def _day_from(self, day: date) -> date | None:
        """Return the first day to which matches may move, so that a yearly pattern is not searched day by day."""
        later = self.moves.longest if self.moves.forward else 0 * DAY
        match = self.pattern.first_from(max(wall_of(day, 0) - later, FIRST_WALL))
        return None if match is None else max(day, match.date() + (later - self.moves.longest))

    def _day_until(self, day: date) -> date | None:
        later = self.moves.longest if self.moves.forward else 0 * DAY
        match = self.pattern.last_until(wall_of(day, DAY_SECONDS - 1) + (self.moves.longest - later))
        return None if match is None else min(day, match.date() + later)


FIRST_WALL = datetime(EARLIEST_YEAR, 1, 1)
