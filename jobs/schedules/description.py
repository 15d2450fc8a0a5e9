"""Describe a schedule by what it means, however it was written."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise, product

from jobs.schedules.calendars.schedule import EXCLUDE, NEXT, PREVIOUS, OnCalendar
from jobs.schedules.cron.expression import ORDINALS
from jobs.schedules.cron.pattern import Days, Pattern

from .kinds import Cron, Interval, Once, Schedule

MAX_TIMES_LISTED = 4
MONTHS = "January February March April May June July August September October November December".split()
WEEK_DAYS = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday".split()
CLOSED = {
    EXCLUDE: "not when {} is closed",
    NEXT: "moved to the next open day when {} is closed",
    PREVIOUS: "moved to the previous open day when {} is closed",
}
UNITS = (("day", 86400), ("hour", 3600), ("minute", 60))


def describe(schedule: Schedule) -> str:
    """Describe a schedule like "Every 5 minutes, America/New_York"."""
    if isinstance(schedule, OnCalendar):
        return f"{_plain(schedule.base)}, {CLOSED[schedule.on_closed].format(schedule.calendar)}{_jitter(schedule)}"
    return f"{_plain(schedule)}{_jitter(schedule)}"


def _plain(schedule: Schedule) -> str:
    if isinstance(schedule, Once):
        if schedule.local and schedule.zone:
            return f"Once, at {schedule.local.isoformat(' ')}, {schedule.zone.key}"
        return f"Once, at {_instant(schedule.at)}"
    if isinstance(schedule, Interval):
        return f"Every {_duration(schedule.every)}{_bounds(schedule)}"
    if isinstance(schedule, Cron):
        return f"{_pattern(schedule.pattern)}, {schedule.zone.key}{_bounds(schedule)}"
    return "On demand"


def _jitter(schedule: Schedule) -> str:
    return f", beginning within {_joined(_parts(schedule.jitter))}" if schedule.jitter else ""


def _pattern(pattern: Pattern) -> str:
    days = _days(pattern.days)
    months = "" if len(pattern.months) == 12 else f"in {_listed(pattern.months, lambda m: MONTHS[m - 1])}"
    if months and days.endswith("of the month") and " or " not in days:
        days, months = f"{days.removesuffix('the month')}{months.removeprefix('in ')}", ""
    times = _times(pattern)
    if times[3:4].isdigit() and not days and not months:
        days = "every day"
    return " ".join(part for part in (times, days, months) if part)


def _times(pattern: Pattern) -> str:
    seconds, minutes, hours = pattern.seconds, pattern.minutes, pattern.hours
    if len(seconds) * len(minutes) * len(hours) <= MAX_TIMES_LISTED:
        shown = "{:02}:{:02}" if seconds == (0,) else "{:02}:{:02}:{:02}"
        return f"At {_joined([shown.format(*time) for time in product(hours, minutes, seconds)])}"
    if seconds != (0,):
        return _leading(seconds, "second", 60) + _within(minutes, "minute", 60) + _within(hours, "hour", 24)
    if len(minutes) == 1 and (step := _even_step(hours, 24)):
        return _every(step, "hour") + (f" at minute {minutes[0]}" if minutes != (0,) else "")
    if len(hours) == 24 and not _even_step(minutes, 60):
        return f"At {_units(minutes, 'minute')} of every hour"
    return _leading(minutes, "minute", 60) + _within(hours, "hour", 24)


def _leading(values: Sequence[int], unit: str, size: int) -> str:
    step = _even_step(values, size)
    return _every(step, unit) if step else f"At {_units(values, unit)}"


def _within(values: Sequence[int], unit: str, size: int) -> str:
    return "" if len(values) == size else f" in {_units(values, unit)}"


def _units(values: Sequence[int], unit: str) -> str:
    return f"{unit}{'s' if len(values) > 1 else ''} {_listed(values, str)}"


def _even_step(values: Sequence[int], size: int) -> int | None:
    """Return the step of values that continue evenly past the end of their hour or day."""
    step = size // len(values)
    return step if size % step == 0 and list(values) == list(range(0, size, step)) else None


def _every(count: int, unit: str) -> str:
    return f"Every {unit}" if count == 1 else f"Every {count} {unit}s"


def _days(days: Days) -> str:
    any_month_day, any_week_day = len(days.month_days) == 31, len(days.week_days) == 7
    named = [_units(sorted(days.month_days), "day")] if days.month_days else []
    named += ["the last day"] if days.last_day else []
    month, week = f"{_joined(named)} of the month", _week_days(days)
    if any_month_day and any_week_day:
        return ""
    if days.both:
        if any_month_day or any_week_day:
            return f"on {week if any_month_day else month}"
        return f"on {month}, if that is {week}"
    return "" if any_month_day or any_week_day else f"on {month} or on {week}"


def _week_days(days: Days) -> str:
    parts = []
    if days.week_days:
        known = {frozenset(range(1, 6)): "weekdays", frozenset({0, 6}): "weekends"}
        monday_first = sorted(days.week_days, key=lambda day: day or 7)
        parts.append(known.get(days.week_days) or _listed(monday_first, lambda day: WEEK_DAYS[day]))
    nth = [f"the {ORDINALS[n - 1]} {WEEK_DAYS[day]}" for day, n in sorted(days.nth_week_days)]
    nth += [f"the last {WEEK_DAYS[day]}" for day in sorted(days.last_week_days)]
    parts += [f"{_joined(nth)} of the month"] if nth else []
    return " or ".join(parts)


def _listed(values: Sequence[int], name: Callable[[int], str]) -> str:
    """List 1, 2, 3, 7 as "1 to 3 and 7", and 1, 4, 7, 10 as "1 to 10 in steps of 3"."""
    steps = {later - earlier for earlier, later in pairwise(values)}
    if len(values) > 3 and len(steps) == 1 and (step := steps.pop()) > 1:
        return f"{name(values[0])} to {name(values[-1])} in steps of {step}"
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    parts: list[str] = []
    for run in runs:
        parts += map(name, run) if len(run) < 3 else [f"{name(run[0])} to {name(run[-1])}"]
    return _joined(parts)


def _joined(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def _duration(every: timedelta) -> str:
    parts = _parts(every)
    return parts[0].removeprefix("1 ") if len(parts) == 1 else _joined(parts)


def _parts(every: timedelta) -> list[str]:
    parts = []
    left = every.total_seconds()
    for unit, size in UNITS:
        count, left = divmod(left, size)
        parts += [_counted(count, unit)] if count else []
    return parts + ([_counted(round(left, 3), "second")] if left else [])


def _counted(count: float, unit: str) -> str:
    return f"{count:g} {unit}{'' if count == 1 else 's'}"


def _bounds(schedule: Schedule) -> str:
    start = f", from {_instant(schedule.begins_at)}" if schedule.begins_at else ""
    return start + (f", until {_instant(schedule.ends_at)}" if schedule.ends_at else "")


def _instant(instant: datetime) -> str:
    precision = "milliseconds" if instant.microsecond else "seconds"
    return f"{instant.replace(tzinfo=None).isoformat(' ', precision)} UTC"
