"""Translate a row of django-celery-beat to a job's spec: with what is lost, or why it is impossible. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from typing import Any

from celery import schedules
from kombu.utils import json

from jobs.errors import DomainError
from jobs.models import DEFAULT_PRIORITY
from jobs.schedules import BadSchedule
from jobs.schedules.cron.expression import compile_expression
from jobs.validation.checks import Json
from jobs.validation.instants import as_text
from runs.celery_beat.schedules import At, CelerySchedule, Every, Task, Unservable, first_time

WEEKS = [frozenset(range(start, min(start + 7, 32))) for start in range(1, 32, 7)]
# A field that begins with a star restricts together with the other, whatever else it names.
STARRED_FIRST_DAY = "*/31"
MAX_PRIORITY, PRIORITY_STEP = 10, 50


class NotImportable(DomainError):
    """The row stays as it is; the message says why and what helps."""


@dataclass
class Translation:
    spec: Json
    # What of the row has no counterpart, in words.
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImportOptions:
    """The options of an import, which hold for all its rows."""

    pool: str
    timeout: str = "P1D"
    max_attempts: int = 1


def translate(row: Json, task: Task, now: datetime, wanted: ImportOptions) -> Translation:
    """Return a job that runs the same task with the same arguments at the same times."""
    notes = list(_lost(row))
    arguments = {name: _plain(row, name) for name in ("args", "kwargs")}
    spec = {
        "name": row["name"],
        "description": row["description"][:4000],
        "pool": wanted.pool,
        "target": {"kind": "celery", "task": row["task"], **arguments},
        "schedule": _schedule(row, task, now, notes),
        "timeout": wanted.timeout,
        # Beat asks nobody whether the last one is still running, makes up for missed times by one, and tries once.
        "overlap": "allow_all",
        "catch_up": {"policy": "last"},
        "retry": {"max_attempts": wanted.max_attempts},
        "priority": _priority(row["priority"]),
        "tags": {"imported-from": "celery-beat"},
    }
    return Translation(spec, notes)


def _lost(row: Json) -> Iterable[str]:
    if names := [name for name in ("queue", "exchange", "routing_key") if row[name]]:
        yield f"{' and '.join(names)} are not kept: the pool decides which workers run it"
    if _json(row, "headers"):
        yield "headers are not kept: a run's task sees those of the platform"
    if row["expire_seconds"]:
        yield (
            f"expire_seconds {row['expire_seconds']} is not kept: a run waits for a worker as long as it takes; "
            "cancel what is too old, or limit it with catch_up"
        )
    if row["priority"] is not None:
        yield f"priority {row['priority']} of its messages becomes {_priority(row['priority'])} of its runs"
    if not row["enabled"]:
        yield "it is switched off, so the job is paused"


def _priority(given: int | None) -> int:
    return DEFAULT_PRIORITY + PRIORITY_STEP * min(given or 0, MAX_PRIORITY)


def _json(row: Json, name: str) -> Any:
    try:
        value = json.loads(row[name]) if row[name] else None
    except Exception as error:  # whatever kombu's own decoders raise
        raise NotImportable(f"its {name} are not JSON: {error}") from error
    return value or ([] if name == "args" else {})


def _plain(row: Json, name: str) -> Any:
    """Refuse values that Kombu marks: it writes a datetime as an object, and the job's task would get the object."""
    value = _json(row, name)
    if kinds := sorted(set(_kinds_beyond_json(value))):
        raise NotImportable(
            f"its {name} hold {', '.join(f'a {kind}' for kind in kinds)}, which the JSON of a job does not know: let "
            "the task read a text, or leave the row where it is; it is served there"
        )
    return value


def _kinds_beyond_json(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _kinds_beyond_json(item)
    elif value is not None and not isinstance(value, (str, int, float)):
        yield type(value).__name__


def _schedule(row: Json, task: Task, now: datetime, notes: list[str]) -> Json:
    try:
        times, first = task.times, first_time(task)
    except Unservable as why:
        raise NotImportable(str(why)) from why
    if task.expires_at is not None and task.expires_at <= max(first, now):
        raise NotImportable(f"it expires at {as_text(task.expires_at)}, before it would run again")
    if isinstance(times, At) or task.one_off:
        if task.run_count > 0:
            raise NotImportable("it was to run once, and has")
        if first <= now:
            raise NotImportable(f"it was to run once, at {as_text(first)}, which is past")
        return {"at": as_text(first)}
    schedule: Json = {}
    if isinstance(times, Every):
        schedule = {"every": _seconds(times.length), "begins_at": as_text(first)}
    elif isinstance(times, CelerySchedule):
        schedule = _cron(row, times.schedule)
        if task.start_at is not None and task.start_at > now:
            schedule["begins_at"] = as_text(task.start_at)
    if task.expires_at is not None:
        schedule["ends_at"] = as_text(task.expires_at - timedelta(milliseconds=1))
    if first < now - timedelta(seconds=1) and row["enabled"]:
        notes.append(
            f"it has been due since {as_text(first)} and nobody sent it: that time is not made up for"
        )
    return schedule


def _seconds(length: timedelta) -> float:
    seconds = length.total_seconds()
    if seconds < 1:
        raise NotImportable(
            f"it runs each {seconds:g} s; a job runs once a second at most: leave it to celery beat, or let one run do "
            "the work of several"
        )
    return int(seconds) if seconds.is_integer() else seconds


def _cron(row: Json, cron: Any) -> Json:
    if isinstance(cron, schedules.solar):
        raise NotImportable("it follows the sun, which no job does: leave it where it is; it is served there")
    fixed = [_field(row["minute"], 0, sorted(cron.minute)), _field(row["hour"], 1, sorted(cron.hour))]
    month = _field(row["month_of_year"], 3, sorted(cron.month_of_year))
    days, week_days = frozenset(cron.day_of_month), frozenset(day % 7 for day in cron.day_of_week)
    plain = (_field(row["day_of_month"], 2, sorted(days)), _field(row["day_of_week"], 4, sorted(week_days)))
    for day, week_day in [plain, *_both(days, week_days)]:
        expression = " ".join([*fixed, day, month, week_day])
        if _means(expression, cron, days, week_days):
            return {"cron": expression, "timezone": str(row["timezone"])}
    raise NotImportable(
        f"it runs on days that are both day {row['day_of_month']} of the month and {row['day_of_week']} of the week, "
        "which no cron expression says: leave it where it is, or let the task look at one of the two"
    )


def _both(days: Collection[int], week_days: Collection[int]) -> Iterable[tuple[str, str]]:
    """Return ways to say that a day must match both fields.

    These are the n-th week days of a month, or a field that begins with a star, after which cron takes the two
    together.
    """
    numbers = [number for number, week in enumerate(WEEKS, 1) if week <= set(days)]
    if set().union(*(WEEKS[number - 1] for number in numbers)) == set(days):
        yield "*", ",".join(f"{day}#{number}" for day, number in product(sorted(week_days), numbers))
    if 1 in days:
        yield ",".join([STARRED_FIRST_DAY, *map(str, sorted(set(days) - {1}))]), _listed(sorted(week_days))
    for step in (6, 5, 4):
        if {0, step} <= set(week_days):
            others = sorted(set(week_days) - {0, step})
            yield _listed(sorted(days)), ",".join([f"*/{step}", *map(str, others)])


def _field(text: str, position: int, values: Sequence[int]) -> str:
    """Return the field as it was written, if that means the same here; otherwise its numbers."""
    fields = ["0", "0", "*", "*", "*"]
    fields[position] = text
    try:
        pattern = compile_expression(" ".join(fields), "")
    except BadSchedule:
        return _listed(values)
    days = pattern.days
    read = (pattern.minutes, pattern.hours, sorted(days.month_days), pattern.months, sorted(days.week_days))
    same = list(read[position]) == list(values) and not days.nth_week_days
    return text if same else _listed(values)


def _listed(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _means(expression: str, cron: Any, days: Collection[int], week_days: Collection[int]) -> bool:
    """Return whether a field means the same as Celery's, on each possible day of each month."""
    try:
        pattern = compile_expression(expression, "")
    except BadSchedule:
        return False
    read = [set(pattern.minutes), set(pattern.hours), set(pattern.months)]
    if read != [set(cron.minute), set(cron.hour), set(cron.month_of_year)]:
        return False
    for first, length in product(range(7), range(28, 32)):
        celerys = tuple(d for d in range(1, length + 1) if d in days and (first + d - 1) % 7 in week_days)
        if pattern.days.of_month(first, length) != celerys:
            return False
    return True
