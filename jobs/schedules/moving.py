"""Moves closed times of a cron pattern to other days, at the same time on the clock.

Nothing goes from time to time, which a pattern may have every second: for each day it is known which spans of which
other days come to it, and the pattern is asked for its first or last match within them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from .clocks import SECOND, first_instant, instants, reading
from .patterns import Pattern
from .working_time import (
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

# A time that is open on none of so many days, not counting those closed by date, is never moved to another one.
REACH = 28
# Nor further than so many days: what comes to a day behind years of closed dates is reckoned in a moment all the same.
FURTHEST = 400
# Where nothing is found on so many days, or on so many with hours, there is nothing. Whoever asks may be a scheduler,
# with everybody's jobs in hand.
MOST_DAYS = 4000
MOST_OPEN_DAYS = 800


@dataclass(frozen=True)
class Moves:
    """Which way closed times go, on whose clock, by whose working time."""

    working: WorkingTime
    zone: ZoneInfo
    forward: bool

    @property
    def step(self) -> timedelta:
        return DAY if self.forward else -DAY

    @property
    def longest(self) -> timedelta:
        """No time goes further."""
        return min(FURTHEST, REACH + 1 + len(self.working.closed)) * DAY


def moved(moves: Moves, wall: datetime) -> datetime | None:
    """Where one time goes: to the instant at which it is open, at once or on another day."""
    passed, first = 0, wall
    while (
        EARLIEST_YEAR <= wall.year <= LATEST_YEAR and passed <= REACH and abs(wall - first) <= FURTHEST * DAY
    ):
        instant = first_instant(moves.zone, wall)
        if moves.working.is_open(instant):
            return instant
        passed += wall.date() not in moves.working.closed
        wall += moves.step
    return None


@lru_cache(maxsize=4096)
def sources(moves: Moves, day: date) -> tuple[tuple[date, Spans], ...]:
    """Which times of which other days come to this one: closed there, and on every day in between."""
    left = open_spans(moves.working, moves.zone, day)
    found = []
    passed, to = 0, day
    while passed < REACH and abs(day - to) < FURTHEST * DAY:
        day -= moves.step
        still = common(left, closed_spans(moves.working, moves.zone, day))
        # Day after closed day it is the same one, so that what is remembered stays small.
        left = left if still == left else still
        if not left or not EARLIEST_YEAR <= day.year <= LATEST_YEAR:
            break
        found.append((day, left))
        passed += day not in moves.working.closed
    return tuple(found)


@dataclass(frozen=True)
class Moved:
    """The times of a pattern that come from other days. `lowest` and `highest` bound where they come from."""

    moves: Moves
    pattern: Pattern
    lowest: datetime
    highest: datetime

    def first_from(self, wall: datetime, last_day: date | None) -> datetime | None:
        """The earliest from this time on the clock on, if it lies no later than that day."""
        for day in self._days_from(wall.date(), last_day):
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
        """The latest up to this time on the clock, if it lies no earlier than that day."""
        for day in self._days_until(wall.date(), first_day):
            end = min((wall - wall_of(day, 0)) // SECOND + 1, DAY_SECONDS)
            best = None
            for source, low, high in self._spans(day, 0, end):
                if best is None or high > best + 1:
                    found = self._last(source, low if best is None else max(low, best + 1), high)
                    best = best if found is None else found
            if best is not None:
                return wall_of(day, best)
        return None

    def _days_from(self, day: date, last_day: date | None) -> Iterator[date]:
        """To which times may come."""
        last_day = last_day or date(LATEST_YEAR, 12, 31)
        opened = 0
        for _ in range(MOST_DAYS):
            if day > last_day or day - self.moves.longest > self.highest.date() or opened >= MOST_OPEN_DAYS:
                return
            opened += self._has_hours(day)
            if sources(self.moves, day):
                yield day
            following = self._day_from(day + DAY)
            if following is None:
                return
            day = following

    def _days_until(self, day: date, first_day: date) -> Iterator[date]:
        opened = 0
        for _ in range(MOST_DAYS):
            if day < first_day or opened >= MOST_OPEN_DAYS:
                return
            opened += self._has_hours(day)
            if sources(self.moves, day):
                yield day
            preceding = self._day_until(day - DAY)
            if preceding is None:
                return
            day = preceding

    def _has_hours(self, day: date) -> bool:
        return bool(open_spans(self.moves.working, self.moves.zone, day))

    def _spans(self, day: date, begin: int, end: int) -> Iterator[tuple[date, int, int]]:
        for source, spans in sources(self.moves, day):
            match = self.pattern.first_from(wall_of(source, 0))
            if match is None or match.date() != source:
                continue
            for low, high in common(spans, ((begin, end),)):
                yield source, low, high

    def _first(self, source: date, begin: int, end: int) -> int | None:
        """The first match within a span of a day, as a second of the day."""
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
        """For what goes by elapsed time the times of a gap are none (cron_times)."""
        return not self.pattern.interval_like or bool(instants(self.moves.zone, match))

    def _day_from(self, day: date) -> date | None:
        """The first day that matches may come to: a yearly pattern is not looked for from day to day."""
        reach = self.moves.longest
        match = self.pattern.first_from(
            max(wall_of(day, 0) - (reach if self.moves.forward else 0 * DAY), FIRST_WALL)
        )
        if match is None:
            return None
        return max(day, match.date() if self.moves.forward else match.date() - reach)

    def _day_until(self, day: date) -> date | None:
        reach = self.moves.longest
        match = self.pattern.last_until(
            wall_of(day, DAY_SECONDS - 1) + (0 * DAY if self.moves.forward else reach)
        )
        if match is None:
            return None
        return min(day, match.date() + reach if self.moves.forward else match.date())


FIRST_WALL = datetime(EARLIEST_YEAR, 1, 1)
