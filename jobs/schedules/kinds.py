"""Define the four kinds of schedule and their planned times, in whole milliseconds UTC."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from jobs.schedules.cron.pattern import Pattern
from scheduler_project.sdk.ids import MILLISECOND, whole_milliseconds

from .cron import occurrences
from .zones import SECOND, UTC

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DOOMSDAY = datetime(9998, 1, 1, tzinfo=UTC)  # zones need room for their offsets before datetime's own end


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Plan the runs of a job, here at no time at all. Planned times before `begins_at` or after `ends_at` do not exist.

    A run may begin up to `jitter` after its planned time, which does not change.
    """

    begins_at: datetime | None = None
    ends_at: datetime | None = None
    jitter: timedelta = timedelta(0)

    def as_json(self) -> dict[str, object] | None:
        return None

    def first_after(self, after: datetime, anchor: datetime) -> datetime | None:
        return None

    def last_until(self, until: datetime, anchor: datetime) -> datetime | None:
        return None

    def _common_as_json(self) -> dict[str, object]:
        bounds = {"begins_at": self.begins_at, "ends_at": self.ends_at}
        written: dict[str, object] = {name: as_text(b) for name, b in bounds.items() if b is not None}
        return {**written, "jitter": _seconds(self.jitter)} if self.jitter else written


@dataclass(frozen=True, kw_only=True)
class OnDemand(Schedule):
    """Plan no times."""


@dataclass(frozen=True, kw_only=True)
class Once(Schedule):
    """Plan one instant; `local` is how the clock of a zone shows it, if it was given so."""

    at: datetime
    local: datetime | None = None
    zone: ZoneInfo | None = None

    def as_json(self) -> dict[str, object]:
        if self.local is None or self.zone is None:
            return {"at": as_text(self.at), **self._common_as_json()}
        return {"at": self.local.isoformat(), "timezone": self.zone.key, **self._common_as_json()}

    def first_after(self, after: datetime, anchor: datetime) -> datetime | None:
        return self.at if self.at > after else None

    def last_until(self, until: datetime, anchor: datetime) -> datetime | None:
        return self.at if self.at <= until else None


@dataclass(frozen=True, kw_only=True)
class Interval(Schedule):
    """Plan begins_at, begins_at + every, …; without it, anchor + every, …: the anchor itself is no planned time."""

    every: timedelta

    def as_json(self) -> dict[str, object]:
        return {"every": _seconds(self.every), **self._common_as_json()}

    def first_after(self, after: datetime, anchor: datetime) -> datetime | None:
        first = self._first(anchor)
        if after < first:
            return first
        passed = (after - first) // self.every
        left = (DOOMSDAY - first) // self.every
        return first + (passed + 1) * self.every if passed < left else None

    def last_until(self, until: datetime, anchor: datetime) -> datetime | None:
        first = self._first(anchor)
        return first + (until - first) // self.every * self.every if until >= first else None

    def _first(self, anchor: datetime) -> datetime:
        return self.begins_at if self.begins_at is not None else whole_milliseconds(anchor) + self.every


@dataclass(frozen=True, kw_only=True)
class Cron(Schedule):
    expression: str
    zone: ZoneInfo
    pattern: Pattern = field(repr=False)

    def as_json(self) -> dict[str, object]:
        return {"cron": self.expression, "timezone": self.zone.key, **self._common_as_json()}

    def first_after(self, after: datetime, anchor: datetime) -> datetime | None:
        if self.begins_at is not None and after < self.begins_at:
            after = min(self.begins_at, DOOMSDAY) - MILLISECOND
        return occurrences.next_after(self.pattern, self.zone, after.replace(microsecond=0))

    def last_until(self, until: datetime, anchor: datetime) -> datetime | None:
        return occurrences.last_until(self.pattern, self.zone, until.replace(microsecond=0))


def next_after(schedule: Schedule, after: datetime, *, anchor: datetime) -> datetime | None:
    """Return the first planned time strictly after `after`, or None."""
    after = max(in_utc(after), EPOCH - SECOND)
    if after >= DOOMSDAY:
        return None
    found = schedule.first_after(after, in_utc(anchor))
    if found is None or (schedule.ends_at is not None and found > schedule.ends_at):
        return None
    return found


def last_before(
    schedule: Schedule, before_or_at: datetime, *, anchor: datetime, not_before: datetime
) -> datetime | None:
    """Return the latest planned time up to and including `before_or_at`, but not before `not_before`."""
    until = min(in_utc(before_or_at), DOOMSDAY, schedule.ends_at or DOOMSDAY)
    earliest = max(in_utc(not_before), EPOCH, schedule.begins_at or EPOCH)
    if until < earliest:
        return None
    found = schedule.last_until(until, in_utc(anchor))
    return found if found is not None and found >= earliest else None


def due_times(
    schedule: Schedule, first: datetime, until: datetime, *, anchor: datetime, limit: int
) -> list[datetime]:
    """Return at most `limit` planned times from `first`, itself one, up to and including `until`."""
    times: list[datetime] = []
    planned: datetime | None = in_utc(first)
    while planned is not None and planned <= until and len(times) < limit:
        times.append(planned)
        planned = next_after(schedule, planned, anchor=anchor)
    return times


def upcoming(schedule: Schedule, after: datetime, limit: int, *, anchor: datetime) -> list[datetime]:
    """Return the next `limit` planned times, fewer if the schedule ends."""
    planned = next_after(schedule, after, anchor=anchor)
    return [] if planned is None else due_times(schedule, planned, DOOMSDAY, anchor=anchor, limit=limit)


def in_utc(instant: datetime) -> datetime:
    if instant.tzinfo is UTC:
        return instant
    if instant.utcoffset() is None:
        raise ValueError(f"{instant} has no offset, so it is no instant")
    return instant.astimezone(UTC)


def as_text(instant: datetime) -> str:
    return instant.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _seconds(length: timedelta) -> int | float:
    seconds = length.total_seconds()
    return int(seconds) if seconds.is_integer() else seconds
