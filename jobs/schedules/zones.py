"""Convert between instants and what a zone's clock shows.

A wall-clock time is a naive datetime, an instant an aware one in UTC; both in whole seconds, as zone changes
are. A clock put forward never shows the times of its gap, one put back shows the times of its fold twice.
"""

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

UTC = timezone.utc
SECOND = timedelta(seconds=1)


def reading(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return what the clock shows at an instant."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def instants(zone: ZoneInfo, wall: datetime) -> tuple[datetime, ...]:
    """Return when the clock shows this time: once, twice in a fold, never in a gap."""
    before, after = _instant(zone, wall, 0), _instant(zone, wall, 1)
    if before == after:
        return (before,)
    return (before, after) if before < after else ()


def first_instant(zone: ZoneInfo, wall: datetime) -> datetime:
    """Return when the clock first shows this time or passes it: for a time inside a gap, the end of the gap."""
    before, after = _instant(zone, wall, 0), _instant(zone, wall, 1)
    return before if before <= after else _change_between(zone, after, before)


def highest_reading(zone: ZoneInfo, instant: datetime) -> datetime:
    """Return the latest time shown so far: in the second pass through a fold, the fold's last second."""
    local = instant.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    if local.fold == 0:
        return wall
    change = _change_between(zone, _instant(zone, wall, 0), _instant(zone, wall, 1))
    return reading(zone, change - SECOND)


def repeat_ahead(zone: ZoneInfo, instant: datetime) -> datetime | None:
    """Return the time to which the clock will be put back, if the instant is in the first pass through a fold."""
    local = instant.astimezone(zone)
    if local.fold == 1:
        return None
    wall = local.replace(tzinfo=None)
    before, after = _instant(zone, wall, 0), _instant(zone, wall, 1)
    return reading(zone, _change_between(zone, before, after)) if before < after else None


def change_within(zone: ZoneInfo, low: datetime, high: datetime) -> datetime | None:
    """Return the first instant after `low` and up to `high` at which the clock is put forward or back, if any."""
    same = low.astimezone(zone).utcoffset() == high.astimezone(zone).utcoffset()
    return None if same else _change_between(zone, low, high)


def _instant(zone: ZoneInfo, wall: datetime, fold: int) -> datetime:
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _change_between(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """Return the first instant of the new offset, which holds at `high` and not at `low`."""
    new_offset = high.astimezone(zone).utcoffset()
    while high - low > SECOND:
        middle = low + (high - low) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(zone).utcoffset() == new_offset:
            high = middle
        else:
            low = middle
    return high
