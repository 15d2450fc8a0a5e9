"""Read a cron expression a second time, with croniter, to notice when the two readings differ."""

import logging
import re
from collections.abc import Collection
from typing import Any

from croniter import croniter

from jobs.schedules.calendars.schedule import OnCalendar
from jobs.schedules.kinds import Cron, Schedule

from .expression import FIELDS, HASHES, MONTH_DAY, WEEK_DAY, WEEK_DAYS, CronField
from .pattern import Days, Pattern

logger = logging.getLogger(__name__)

# The last Friday of a month: FRIL, 5L or LFRI here, and only L5 in croniter.
NAMES = "|".join(WEEK_DAYS)
LAST_WEEK_DAY = re.compile(rf"(?<![A-Z0-9])(?:({NAMES}|0*[0-7])L|L({NAMES}))(?![A-Z0-9])", re.IGNORECASE)


def log_disagreement(schedule: Schedule) -> None:
    """Log how croniter reads the schedule otherwise. Our reading stands: it is what the API promises."""
    plain = schedule.base if isinstance(schedule, OnCalendar) else schedule
    if isinstance(plain, Cron) and (found := disagreement(plain.expression, plain.pattern)):
        logger.warning("croniter reads the cron expression %s differently: %s", plain.expression, found)


def disagreement(expression: str, pattern: Pattern) -> str:
    """Name the fields that croniter reads otherwise, or say that it refuses the expression; empty if it agrees.

    An H is not compared: each engine has its own numbers for it.
    """
    if HASHES.search(expression):
        return ""
    text = LAST_WEEK_DAY.sub(_for_croniter, expression)
    try:
        expanded: Any = croniter.expand(text, second_at_beginning=True)
    except Exception as error:  # whatever it raises: a second opinion refuses no job
        return f"it refuses it: {error}"
    read, special = expanded
    # croniter moves the seconds behind the other fields.
    fields = [[0], *read] if len(read) == 5 else [read[5], *read[:5]]
    second, minute, hour, month_day, month, week_day = map(_values, FIELDS, fields)
    pairs = special.items()
    days = Days(
        month_days=frozenset(month_day - {"l"}),
        last_day="l" in month_day,
        # It lists the days of 5#2 and L5 among the plain ones, and refuses to read both kinds in one field.
        week_days=frozenset(week_day if "*" in fields[5] else week_day - special.keys()),
        nth_week_days=frozenset((day, nth) for day, found in pairs for nth in found if nth != "l"),
        last_week_days=frozenset(day for day, found in pairs if "l" in found),
        both=pattern.days.both,
    )
    same = {
        "second": second == set(pattern.seconds),
        "minute": minute == set(pattern.minutes),
        "hour": hour == set(pattern.hours),
        "month": month == set(pattern.months),
        f"{MONTH_DAY.name} or {WEEK_DAY.name}": _same_days(days, pattern.days),
    }
    return ", ".join(name for name, agrees in same.items() if not agrees)


def _values(field: CronField, found: Collection[Any]) -> set[Any]:
    return set(range(field.low, field.high + 1)) if "*" in found else set(found)


def _same_days(one: Days, other: Days) -> bool:
    shapes = [(first, length) for first in range(7) for length in range(28, 32)]
    return one == other or all(one.of_month(*shape) == other.of_month(*shape) for shape in shapes)


def _for_croniter(match: re.Match[str]) -> str:
    day = (match[1] or match[2]).upper()
    return f"L{WEEK_DAYS.index(day) if day in WEEK_DAYS else day}"
