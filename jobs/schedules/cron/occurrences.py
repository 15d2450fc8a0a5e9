"""Compute the planned instants of cron patterns in zones, by two time rules.

*Interval-like* patterns, whose hour field is written `*` or `*/n`, go by elapsed time: an instant is planned
when the zone's clock shows a matching time at it, and each instant is judged by itself. So:
- They go on through both passes of a fold. `*/15` stays 15 minutes apart; `0 */2` fires in both, an hour
  apart, where it is an even hour that repeats.
- A time inside a gap has no instant, and nothing is made up for it: `0 */2` is 3 hours apart where 02:00 is
  missing.
- The numbers are those the clock shows. Where it moves by half an hour (Australia/Lord_Howe), `0 *` is once
  90 minutes apart rather than off the full hour ever after, and `*/15` stays even.

All others are *wall-clock* times: each is planned at the first instant at which the clock shows it or has
gone past it. So:
- A time in a fold fires once, in the first pass.
- The times inside one gap collapse into one firing at the first instant after it, even if it swallows a day.

Only the hour field as written decides: `0-23` and `H/2` are wall-clock.
"""

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from jobs.schedules.zones import SECOND, first_instant, highest_reading, instants, reading, repeat_ahead

from .pattern import Pattern


@lru_cache(maxsize=16384)  # at a minute boundary thousands of jobs need the same few times
def next_after(pattern: Pattern, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first planned instant after this one, which is in whole seconds UTC."""
    if pattern.interval_like:
        starts = (reading(zone, after) + SECOND, repeat_ahead(zone, after))
        found = [_first_shown(pattern, zone, start, after) for start in starts if start is not None]
        return min((f for f in found if f is not None), default=None)
    match = pattern.first_from(highest_reading(zone, after) + SECOND)
    return first_instant(zone, match) if match else None


def last_until(pattern: Pattern, zone: ZoneInfo, until: datetime) -> datetime | None:
    """Return the latest planned instant at or before this one, which is in whole seconds UTC."""
    highest = highest_reading(zone, until)
    if pattern.interval_like:
        found = [_last_shown(pattern, zone, start, until) for start in {reading(zone, until), highest}]
        return max((f for f in found if f is not None), default=None)
    match = pattern.last_until(highest)
    return first_instant(zone, match) if match else None


def _first_shown(pattern: Pattern, zone: ZoneInfo, start: datetime, after: datetime) -> datetime | None:
    wall = start
    while (match := pattern.first_from(wall)) is not None:
        for instant in instants(zone, match):
            if instant > after:
                return instant
        wall = max(match + SECOND, reading(zone, first_instant(zone, match)))
    return None


def _last_shown(pattern: Pattern, zone: ZoneInfo, start: datetime, until: datetime) -> datetime | None:
    wall = start
    while (match := pattern.last_until(wall)) is not None:
        for instant in reversed(instants(zone, match)):
            if instant <= until:
                return instant
        wall = min(match - SECOND, reading(zone, first_instant(zone, match) - SECOND))
    return None
