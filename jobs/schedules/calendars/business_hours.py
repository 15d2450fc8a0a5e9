"""Compute which instants a calendar's working time opens, and its next opening and last closing.

Days and hours are those of the calendar's own zone. Whether an instant is open can change only where a span of hours
begins or ends and where the zone's clock is put forward or back, so nothing here walks from second to second.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from jobs.schedules.zones import SECOND, change_within, first_instant, instants, reading
from scheduler_project.sdk.ids import MILLISECOND

DAY = timedelta(days=1)
DAY_SECONDS = 86_400
LATEST_YEAR = 9997
EARLIEST_YEAR = 1970
WEEK = 7

Span = tuple[int, int]  # seconds of a day, the second one no longer inside
Spans = tuple[Span, ...]
WHOLE_DAY: Spans = ((0, DAY_SECONDS),)


@dataclass(frozen=True)
class WorkingTime:
    zone: ZoneInfo
    closed: frozenset[date]
    weekly: tuple[Spans, ...]  # from Monday
    names: Mapping[date, str] = field(default_factory=dict, compare=False, repr=False)
    hash_value: int = field(init=False, compare=False, repr=False)  # computed once: calendars are memo keys

    def __post_init__(self) -> None:
        object.__setattr__(self, "hash_value", hash((self.zone, self.closed, self.weekly)))

    def __hash__(self) -> int:
        return self.hash_value

    def without_names(self) -> "WorkingTime":
        """Drop the names of dates before the calendar is cached: they are not needed and may be most of its size."""
        return replace(self, names={})

    def spans_on(self, day: date) -> Spans:
        return () if day in self.closed else self.weekly[day.weekday()]

    def is_open(self, instant: datetime) -> bool:
        wall = reading(self.zone, instant)
        second = wall.hour * 3600 + wall.minute * 60 + wall.second
        return any(begin <= second < end for begin, end in self.spans_on(wall.date()))

    def next_opening(self, after: datetime) -> datetime | None:
        """Return the first instant after this one at which it opens, or is open after a change of its clock."""
        for day in self._days_near(reading(self.zone, after).date() - DAY, DAY):
            for edge in edges(self, day):
                if edge > after and self.is_open(edge):
                    return edge
        return None

    def last_closing(self, until: datetime) -> datetime | None:
        """Return the last instant up to this one at which it closed."""
        for day in self._days_near(reading(self.zone, until).date() + DAY, -DAY):
            for edge in reversed(edges(self, day)):
                if edge <= until and self.is_open(edge - MILLISECOND):
                    return edge
        return None

    def _days_near(self, day: date, step: timedelta) -> Iterator[date]:
        """Yield days that may open or close, far enough to find one: each closed date may cost a week."""
        for _ in range((len(self.closed) + 1) * WEEK + 3):
            if not EARLIEST_YEAR <= day.year <= LATEST_YEAR:
                return
            # A clock put back at midnight returns to the day before.
            if self.spans_on(day) or self.spans_on(day - DAY):
                yield day
            day += step


ALWAYS_OPEN = WorkingTime(zone=ZoneInfo("UTC"), closed=frozenset(), weekly=(WHOLE_DAY,) * WEEK)


@lru_cache(maxsize=16384)
def edges(working: WorkingTime, day: date) -> tuple[datetime, ...]:
    """Return the instants of a day at which it may open or close, in order."""
    spans = working.spans_on(day)
    found = {
        instant
        for second in {second for span in spans for second in span}
        for instant in (*instants(working.zone, wall_of(day, second)), _reached(working.zone, day, second))
    }
    change = _change_on(working.zone, day)
    return tuple(sorted(found | ({change} if change else set())))


@lru_cache(maxsize=16384)
def open_spans(working: WorkingTime, zone: ZoneInfo, day: date) -> Spans:
    """Return the times of this day in another zone that are open when its clock reaches them."""
    change = _change_on(zone, day)
    if zone is working.zone and change is None:
        return working.spans_on(day)
    there = reading(working.zone, _reached(zone, day, 0)).date() - DAY
    marks = {0, DAY_SECONDS}
    for number in range(4):
        marks.update(_second_on(day, reading(zone, edge)) for edge in edges(working, there + number * DAY))
    if change is not None:
        marks.add(_second_on(day, reading(zone, change)))
        marks.add(_second_on(day, reading(zone, change - SECOND)) + 1)
    steps = pairwise(sorted(mark for mark in marks if 0 <= mark <= DAY_SECONDS))
    return tuple(step for step in steps if working.is_open(_reached(zone, day, step[0])))


def closed_spans(working: WorkingTime, zone: ZoneInfo, day: date) -> Spans:
    opened = open_spans(working, zone, day)
    marks = [0, *(second for span in opened for second in span), DAY_SECONDS]
    return tuple((begin, end) for begin, end in zip(marks[::2], marks[1::2], strict=True) if begin < end)


def common(some: Iterable[Span], others: Spans) -> Spans:
    both = ((max(a, b), min(c, d)) for a, c in some for b, d in others)
    return tuple((begin, end) for begin, end in both if begin < end)


def wall_of(day: date, second: int) -> datetime:
    return datetime.combine(day, time()) + timedelta(seconds=second)


def _reached(zone: ZoneInfo, day: date, second: int) -> datetime:
    return first_instant(zone, wall_of(day, second))


def _second_on(day: date, wall: datetime) -> int:
    return int((wall - datetime.combine(day, time())).total_seconds())


@lru_cache(maxsize=16384)
def _change_on(zone: ZoneInfo, day: date) -> datetime | None:
    return change_within(zone, _reached(zone, day, 0) - SECOND, _reached(zone, day, DAY_SECONDS))
