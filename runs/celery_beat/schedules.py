"""Calculate the times that DatabaseScheduler would fire, by Celery's own schedule objects. Pure.

A schedule returns the time after another one; it does not read the clock.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Protocol
from zoneinfo import ZoneInfo

from celery import schedules
from celery.exceptions import ImproperlyConfigured

UTC = timezone.utc
PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")
# Somewhat later there are no times any more.
MAX_LENGTH = timedelta(days=36_525)
# How far back the latest missed time is looked for: each step meets few times, as the one before met none.
LOOK_BACK = [timedelta(minutes=1), timedelta(hours=1), timedelta(days=1), timedelta(days=32)]


class Unservable(Exception):
    """The times of a row's schedule cannot be calculated; the message says why and what helps."""


class RowSchedule(Protocol):
    def after(self, at: datetime) -> datetime:
        """Return the planned time that follows a run at this instant."""

    def latest(self, first: datetime, now: datetime) -> datetime:
        """Return the last time up to now, counted from `first`, which is one and past."""


@dataclass(frozen=True)
class Every:
    """Fires this long after the last run; missed times keep the rhythm."""

    length: timedelta

    def after(self, at: datetime) -> datetime:
        return at + self.length

    def latest(self, first: datetime, now: datetime) -> datetime:
        return first + (now - first) // self.length * self.length


@dataclass(frozen=True)
class At:
    """A clocked row: fires once."""

    at: datetime

    def after(self, at: datetime) -> datetime:
        """Return its time; one that was switched on again after its time is due at once."""
        return max(self.at, at)

    def latest(self, first: datetime, now: datetime) -> datetime:
        return first


@dataclass(frozen=True)
class CelerySchedule:
    """A crontab or a solar schedule."""

    schedule: schedules.BaseSchedule

    def after(self, at: datetime) -> datetime:
        self.schedule.nowfun = lambda: at  # type: ignore[attr-defined]  # the stubs call it nowfunc
        return (at + self.schedule.remaining_estimate(at)).astimezone(UTC)

    def latest(self, first: datetime, now: datetime) -> datetime:
        for back in LOOK_BACK:
            if (begin := now - back) <= first:
                break
            if (found := self.after(begin)) <= now:
                return self._last(found, now)
        return self._last(first, now)

    def _last(self, found: datetime, now: datetime) -> datetime:
        while (following := self.after(found)) <= now and following > found:
            found = following
        return found


def every(count: int, period: str) -> RowSchedule:
    if period not in PERIODS:
        raise Unservable(f"its interval's period is {period!r}; known are {', '.join(PERIODS)}")
    if count < 1:
        raise Unservable(f"its interval of {count} {period} never ends; it must be 1 or more")
    if timedelta(**{period: 1}) > MAX_LENGTH / count:
        raise Unservable(
            f"its interval of {count} {period} ends after all times; a hundred years are the most"
        )
    return Every(timedelta(**{period: count}))


@lru_cache(maxsize=4096)
def crontab(
    minute: str, hour: str, day_of_month: str, month_of_year: str, day_of_week: str, zone: str
) -> RowSchedule:
    try:
        schedule: Any = schedules.crontab(minute, hour, day_of_week, day_of_month, month_of_year)
        schedule.tz = ZoneInfo(zone)
    except (ValueError, KeyError, OSError, schedules.ParseException) as error:
        raise Unservable(f"its crontab cannot be read: {error}") from error
    return CelerySchedule(schedule)


@lru_cache(maxsize=1024)
def solar(event: Any, latitude: float, longitude: float) -> RowSchedule:
    try:
        return CelerySchedule(schedules.solar(event, latitude, longitude))
    except (ImportError, ImproperlyConfigured) as error:
        raise Unservable(
            "solar schedules need the package ephem where the scheduler runs: pip install ephem"
        ) from error
    except ValueError as error:
        raise Unservable(f"its solar schedule cannot be read: {error}") from error


@dataclass(slots=True)
class Task:
    """A periodic task as it was last read, without what its message needs."""

    id: int
    version: int
    name: str
    enabled: bool
    one_off: bool
    run_count: int
    last_run_at: datetime | None
    changed_at: datetime
    start_at: datetime | None
    expires_at: datetime | None
    read_times: Callable[[], RowSchedule]
    found_times: RowSchedule | None = None

    @property
    def times(self) -> RowSchedule:
        if self.found_times is None:
            self.found_times = self.read_times()
        return self.found_times


@dataclass(frozen=True)
class Fire:
    planned_at: datetime
    # The first of the times that were missed, for which this one stands.
    missed_since: datetime | None = None


@dataclass(frozen=True)
class Disable:
    """The task has expired, or was to run once and has."""

    planned_at: None = None
    missed_since: None = None


@dataclass(frozen=True)
class Wait:
    until: datetime | None


def wake_at(task: Task) -> datetime | None:
    """Return when there is something to decide about the task; never for one that is switched off."""
    if not task.enabled:
        return None
    if _has_run_once(task):
        return task.start_at or task.changed_at
    first = first_time(task)
    if task.expires_at is None or task.expires_at > first:
        return first
    return max(task.expires_at, task.start_at or task.expires_at)


def first_time(task: Task) -> datetime:
    """Return the planned time that follows the task's last run.

    One that never ran counts from its last change; with a start time it is due at the start, a crontab at its first
    time from then on, and at once where the start is past.
    """
    start = task.start_at
    if start is None:
        return task.times.after(task.last_run_at or task.changed_at)
    if task.last_run_at is not None:
        due = task.times.after(task.last_run_at)
    elif isinstance(task.times, At):
        due = task.times.after(task.changed_at)
    else:
        due = task.changed_at
    if due >= start:
        return due
    return task.times.after(start - timedelta(microseconds=1)) if _is_crontab(task.times) else start


def decide(task: Task, now: datetime, deadline: float | None = None) -> Fire | Disable | Wait:
    """Make up for missed times by one firing, the latest; `deadline` is Celery's beat_cron_starting_deadline."""
    if not task.enabled:
        return Wait(None)
    if task.start_at is not None and now < task.start_at:
        return Wait(wake_at(task))
    if (task.expires_at is not None and now >= task.expires_at) or _has_run_once(task):
        return Disable()
    first = first_time(task)
    if first > now:
        return Wait(wake_at(task))
    latest = task.times.latest(first, now)
    if deadline is not None and _is_crontab(task.times) and now - latest > timedelta(seconds=deadline):
        return Wait(task.times.after(now))
    return Fire(latest, first if first < latest else None)


def _has_run_once(task: Task) -> bool:
    return task.one_off and task.run_count > 0


def _is_crontab(times: RowSchedule) -> bool:
    return isinstance(times, CelerySchedule) and isinstance(times.schedule, schedules.crontab)


def times_of(row: dict[str, Any]) -> RowSchedule:
    """Return the schedule that a row names, looked for in the order in which its own model does."""
    if row["every"] is not None:
        return every(row["every"], row["period"])
    if row["minute"] is not None:
        fields = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week", "timezone")
        return crontab(*(str(row[name]) for name in fields))
    if row["event"] is not None:
        latitude, longitude = float(row["latitude"]), float(row["longitude"])
        if math.isnan(latitude) or math.isnan(longitude):
            raise Unservable("its solar schedule has no place")
        return solar(row["event"], latitude, longitude)
    if row["clocked_time"] is not None:
        return At(row["clocked_time"])
    raise Unservable("it has no schedule: none of interval, crontab, solar and clocked is set")
