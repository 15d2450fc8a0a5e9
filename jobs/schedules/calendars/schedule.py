"""Keep a schedule to a calendar's working time: leave its closed times out, or move them to another day.

Moved (`next`, `previous`), a closed time goes day by day, at the same time on the clock, to the first later (last
earlier) day on which that time is open. A time of day that is open on none of 28 days, not counting those closed by
date, is left out. Where two times fall together there is one. The clock is that of the schedule's own zone; a one-time
schedule has none, so it is the calendar's. An interval has no time on the clock to keep: it can only leave out.

`begins_at` and `ends_at` bound a time both as the schedule has it and where it is moved to.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache

from jobs.schedules.kinds import DOOMSDAY, EPOCH, Cron, Once, Schedule
from jobs.schedules.zones import SECOND, first_instant, highest_reading, reading
from scheduler_project.sdk.ids import MILLISECOND

from .business_hours import WorkingTime
from .shifting import Moved, Moves, moved

EXCLUDE, NEXT, PREVIOUS = ON_CLOSED = ("exclude", "next", "previous")
# The search ends after so many closed times in a row, or so many years of them.
MAX_CLOSED = 4000
MAX_YEARS = 200 * timedelta(days=366)


@dataclass(frozen=True, kw_only=True)
class OnCalendar(Schedule):
    """Plan the times of `base`, the schedule without its calendar, by the working time."""

    base: Schedule
    calendar: str
    on_closed: str
    working: WorkingTime = field(repr=False)

    def as_json(self) -> dict[str, object]:
        named = {"calendar": {"name": self.calendar, "on_closed": self.on_closed}}
        return {**(self.base.as_json() or {}), **named}

    def first_after(self, after: datetime, anchor: datetime) -> datetime | None:
        if self.begins_at is not None and after < self.begins_at:
            after = min(self.begins_at, DOOMSDAY) - MILLISECOND
        if isinstance(self.base, Once):
            at = self._moved_once(self.base)
            return at if at is not None and at > after else None
        if isinstance(self.base, Cron):
            return _first_of_cron(self.base, self.working, self.on_closed, after.replace(microsecond=0))
        return first_open(self.base, self.working, after, anchor)

    def last_until(self, until: datetime, anchor: datetime) -> datetime | None:
        if isinstance(self.base, Once):
            at = self._moved_once(self.base)
            return at if at is not None and at <= until else None
        if isinstance(self.base, Cron):
            return _last_of_cron(self.base, self.working, self.on_closed, until.replace(microsecond=0))
        return last_open(self.base, self.working, until, anchor)

    def _moved_once(self, once: Once) -> datetime | None:
        if self.working.is_open(once.at):
            return once.at
        if self.on_closed == EXCLUDE:
            return None
        zone = once.zone or self.working.zone
        return moved(Moves(self.working, zone, self.on_closed == NEXT), once.local or reading(zone, once.at))


def first_open(base: Schedule, working: WorkingTime, after: datetime, anchor: datetime) -> datetime | None:
    found, latest = base.first_after(after, anchor), None
    for _ in range(MAX_CLOSED):
        if found is None or found > (base.ends_at or DOOMSDAY):
            return None
        latest = latest or found + min(MAX_YEARS, DOOMSDAY - found)
        if found > latest:
            return None
        if working.is_open(found):
            return found
        opening = working.next_opening(found)
        found = base.first_after(opening - MILLISECOND, anchor) if opening else None
    return None


def last_open(base: Schedule, working: WorkingTime, until: datetime, anchor: datetime) -> datetime | None:
    found = base.last_until(until, anchor)
    for _ in range(MAX_CLOSED):
        if found is None or found < (base.begins_at or EPOCH):
            return None
        if working.is_open(found):
            return found
        closing = working.last_closing(found)
        found = base.last_until(closing - MILLISECOND, anchor) if closing else None
    return None


@lru_cache(maxsize=16384)  # at an opening thousands of jobs need the same few times
def _first_of_cron(base: Cron, working: WorkingTime, on_closed: str, after: datetime) -> datetime | None:
    """Return the earlier of the first time that is open and the first that moves here from another day."""
    kept = first_open(base, working, after, after)
    if on_closed == EXCLUDE:
        return kept
    last_day = reading(base.zone, kept).date() if kept else None
    wall = highest_reading(base.zone, after) + SECOND
    found = _moved(base, working, on_closed == NEXT).first_from(wall, last_day)
    instants = [kept, first_instant(base.zone, found) if found else None]
    return min((instant for instant in instants if instant is not None), default=None)


@lru_cache(maxsize=16384)
def _last_of_cron(base: Cron, working: WorkingTime, on_closed: str, until: datetime) -> datetime | None:
    kept = last_open(base, working, until, until)
    if on_closed == EXCLUDE:
        return kept
    first_day = reading(base.zone, max(kept or EPOCH, base.begins_at or EPOCH)).date()
    wall = highest_reading(base.zone, until)
    found = _moved(base, working, on_closed == NEXT).last_until(wall, first_day)
    instants = [kept, first_instant(base.zone, found) if found else None]
    return max((instant for instant in instants if instant is not None), default=None)


def _moved(base: Cron, working: WorkingTime, forward: bool) -> Moved:
    """Bound moved times as Cron bounds its own: from the start on, and up to the end."""
    before_start = min(base.begins_at or EPOCH, DOOMSDAY) - MILLISECOND
    lowest = highest_reading(base.zone, before_start.replace(microsecond=0)) + SECOND
    highest = highest_reading(base.zone, min(base.ends_at or DOOMSDAY, DOOMSDAY).replace(microsecond=0))
    return Moved(Moves(working, base.zone, forward), base.pattern, lowest, highest)
