"""When zones change their offset, found without the code under test."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

UTC = timezone.utc
SECOND = timedelta(seconds=1)
ZONES = sorted(available_timezones() - {"localtime", "posixrules", "Factory"})


@dataclass(frozen=True)
class Change:
    at: datetime  # the first instant of the new offset
    jump: timedelta  # how far the clock was put forward


@cache
def changes(name: str, first_year: int = 1970, last_year: int = 2037) -> tuple[Change, ...]:
    """Those which a look every 20 days can see; 1970 to 2037 has every kind there is."""
    return tuple(_changes(ZoneInfo(name), datetime(first_year, 1, 3, tzinfo=UTC), last_year))


def _changes(zone: ZoneInfo, before: datetime, last_year: int) -> Iterator[Change]:
    while before.year <= last_year:
        after = before + timedelta(days=20)
        if _offset(zone, before) != _offset(zone, after):
            at = _first_of_new_offset(zone, before, after)
            yield Change(at, _offset(zone, at) - _offset(zone, at - SECOND))
        before = after


def _first_of_new_offset(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    old = _offset(zone, low)
    while high - low > SECOND:
        middle = (low + (high - low) / 2).replace(microsecond=0)
        low, high = (middle, high) if _offset(zone, middle) == old else (low, middle)
    return high


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    offset = instant.astimezone(zone).utcoffset()
    assert offset is not None
    return offset
