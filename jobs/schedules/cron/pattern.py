"""Search the wall-clock times that match the sets of numbers of a cron expression.

Nothing here knows of time zones; `occurrences` maps wall-clock times to instants.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import date, datetime

LATEST_YEAR = 9998
EARLIEST_YEAR = 1969
MONTH_LENGTHS = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

TimeOfDay = tuple[int, int, int]


@dataclass(frozen=True)
class Days:
    """Decide which days of a month match. Week days count from Sunday = 0."""

    month_days: frozenset[int]
    last_day: bool
    week_days: frozenset[int]
    nth_week_days: frozenset[tuple[int, int]]
    last_week_days: frozenset[int]
    both: bool  # a field that begins with `*` restricts nothing by itself: both must match, else either may
    by_shape: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)

    def of_month(self, first_week_day: int, length: int) -> tuple[int, ...]:
        # A month has only 28 shapes, so this cache stays small.
        shape = (first_week_day, length)
        if shape not in self.by_shape:
            matching = (d for d in range(1, length + 1) if self._matches(d, first_week_day, length))
            self.by_shape[shape] = tuple(matching)
        return self.by_shape[shape]

    def _matches(self, day: int, first_week_day: int, length: int) -> bool:
        week_day = (first_week_day + day - 1) % 7
        by_month = day in self.month_days or (self.last_day and day == length)
        by_week = (
            week_day in self.week_days
            or (week_day, (day + 6) // 7) in self.nth_week_days
            or (week_day in self.last_week_days and day + 7 > length)
        )
        return (by_month and by_week) if self.both else (by_month or by_week)


@dataclass(frozen=True)
class Pattern:
    """Match wall-clock times. Patterns that mean the same are equal, however their expressions are written."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: tuple[int, ...]
    days: Days
    interval_like: bool
    hash_value: int = field(init=False, compare=False, repr=False)  # computed once: patterns are memo keys

    def __post_init__(self) -> None:
        key = (self.seconds, self.minutes, self.hours, self.months, self.days, self.interval_like)
        object.__setattr__(self, "hash_value", hash(key))

    def __hash__(self) -> int:
        return self.hash_value

    def can_fire(self) -> bool:
        """Say whether any date matches: in 400 years every month, leap or not, begins on every week day."""
        lengths = {length for m in self.months for length in ((28, 29) if m == 2 else (MONTH_LENGTHS[m],))}
        return any(self.days.of_month(first, length) for length in lengths for first in range(7))

    def first_from(self, wall: datetime) -> datetime | None:
        """Return the earliest matching time at or after this one."""
        time = self._time_from(wall.hour, wall.minute, wall.second)
        if time and wall.day in self._days(wall.year, wall.month):
            return datetime(wall.year, wall.month, wall.day, *time)
        first_time = self.hours[0], self.minutes[0], self.seconds[0]
        return self._on_next_day(wall, first_time, forward=True)

    def last_until(self, wall: datetime) -> datetime | None:
        """Return the latest matching time at or before this one."""
        time = self._time_until(wall.hour, wall.minute, wall.second)
        if time and wall.day in self._days(wall.year, wall.month):
            return datetime(wall.year, wall.month, wall.day, *time)
        last_time = self.hours[-1], self.minutes[-1], self.seconds[-1]
        return self._on_next_day(wall, last_time, forward=False)

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self.months:
            return ()
        length = MONTH_LENGTHS[month]
        if month == 2 and not (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
            length = 28
        return self.days.of_month(date(year, month, 1).isoweekday() % 7, length)

    def _on_next_day(self, wall: datetime, time: TimeOfDay, *, forward: bool) -> datetime | None:
        """Return this time on the next matching day, or on the last one before if it does not go forward."""
        year, month, day = wall.year, wall.month, wall.day
        while EARLIEST_YEAR <= year <= LATEST_YEAR:
            days = self._days(year, month)
            number = bisect_right(days, day) if forward else bisect_left(days, day) - 1
            if 0 <= number < len(days):
                return datetime(year, month, days[number], *time)
            number = bisect_right(self.months, month) if forward else bisect_left(self.months, month) - 1
            if not 0 <= number < len(self.months):
                year, number = (year + 1, 0) if forward else (year - 1, -1)
            month, day = self.months[number], 0 if forward else 32
        return None

    def _time_from(self, hour: int, minute: int, second: int) -> TimeOfDay | None:
        if hour in self.hours:
            if minute in self.minutes and second <= self.seconds[-1]:
                return hour, minute, self.seconds[bisect_left(self.seconds, second)]
            if minute < self.minutes[-1]:
                return hour, self.minutes[bisect_right(self.minutes, minute)], self.seconds[0]
        if hour < self.hours[-1]:
            return self.hours[bisect_right(self.hours, hour)], self.minutes[0], self.seconds[0]
        return None

    def _time_until(self, hour: int, minute: int, second: int) -> TimeOfDay | None:
        if hour in self.hours:
            if minute in self.minutes and second >= self.seconds[0]:
                return hour, minute, self.seconds[bisect_right(self.seconds, second) - 1]
            if minute > self.minutes[0]:
                return hour, self.minutes[bisect_left(self.minutes, minute) - 1], self.seconds[-1]
        if hour > self.hours[0]:
            return self.hours[bisect_left(self.hours, hour) - 1], self.minutes[-1], self.seconds[-1]
        return None
