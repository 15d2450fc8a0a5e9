"""Compare the firing times of rows with the planned times of the jobs they become, also where the clock changes."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import NamedTuple

from jobs.clock import database_now
from jobs.schedules import Cron, Schedule, due_times, next_after, parse
from jobs.schedules.zones import SECOND, change_within, reading
from jobs.validation.checks import Json
from runs.celery_beat.importer import HostRows
from runs.celery_beat.schedules import Disable, Fire, Task, decide, wake_at
from runs.celery_beat.translation import ImportOptions, NotImportable, translate
from scheduler_project.sdk.ids import whole_milliseconds

DAY = timedelta(days=1)
# Both changes of a year lie within.
CLOCK_CHANGES_AHEAD = 400 * DAY
# The first so many times are compared, of a row that fires each second in a long period.
MAX_TIMES = 100_000

FORWARD = (
    "the clock is put forward here. Celery runs a time that is skipped as much later as the clock jumps; a job whose "
    "hour is * or */n leaves it out, any other runs it at the first instant after the gap, several in one gap once"
)
BACK = (
    "the clock is put back here. Celery leaves out the repeated hour once it has run in it; a job whose hour is * or "
    "*/n goes on through both passes, any other runs in the first"
)
UNEXPLAINED = "no rule explains this"


class TimeDifference(NamedTuple):
    at: datetime
    # Or by the job alone.
    by_celery: bool
    rule: str


@dataclass
class Comparison:
    name: str
    compared: int = 0
    differences: list[TimeDifference] = field(default_factory=list)
    # Why there is no job to compare with.
    refused: str = ""


def shadow(rows: HostRows, wanted: ImportOptions, length: timedelta) -> Iterator[Comparison]:
    """Compare every row with the job that it would become now."""
    now = database_now()
    for row, task in rows.all():
        try:
            spec = translate(row, task, now, wanted).spec
        except NotImportable as why:
            yield Comparison(row["name"], refused=str(why))
        else:
            yield compare(task, spec, now, length)


def compare(task: Task, spec: Json, begin: datetime, length: timedelta) -> Comparison:
    """Compare over the period, and over a day around each change of the zone's clock in the year to come."""
    schedule = parse(spec["schedule"], task.name)
    found = Comparison(task.name)
    for first, until in [(begin, begin + length), *_around_changes(schedule, begin)]:
        by_celery = set(_celerys(task, first, until))
        by_job = set[datetime]()
        if planned := next_after(schedule, first, anchor=first):
            by_job.update(due_times(schedule, planned, until, anchor=first, limit=MAX_TIMES))
        found.compared += len(by_celery & by_job)
        found.differences += [
            TimeDifference(at, at in by_celery, _rule(schedule, at)) for at in sorted(by_celery ^ by_job)
        ]
    return found


def _celerys(task: Task, begin: datetime, until: datetime) -> Iterator[datetime]:
    """Return when Celery's scheduler would fire, had it fired last just before the period."""
    served = replace(task, enabled=True)
    first = wake_at(served)
    if first is not None and first <= begin and not served.one_off:
        # What was missed before the period is not compared.
        served.last_run_at = served.times.latest(first, begin)
    for _ in range(MAX_TIMES):
        at = wake_at(served)
        if at is None or at > until:
            return
        decision = decide(served, at)
        if isinstance(decision, Disable):
            return
        if not isinstance(decision, Fire):
            continue
        if decision.planned_at > begin:
            yield whole_milliseconds(decision.planned_at.astimezone(timezone.utc))
        if served.one_off:
            return
        served.last_run_at = decision.planned_at


def _around_changes(schedule: Schedule, begin: datetime) -> Iterator[tuple[datetime, datetime]]:
    if not isinstance(schedule, Cron):
        return
    for number in range(CLOCK_CHANGES_AHEAD // DAY):
        day = begin + number * DAY
        if change := change_within(schedule.zone, day, day + DAY):
            yield change - DAY, change + DAY


def _rule(schedule: Schedule, at: datetime) -> str:
    """Return which change of the clock explains a difference; times that it moves lie within some hours of it."""
    if isinstance(schedule, Cron) and (change := change_within(schedule.zone, at - DAY / 4, at + DAY / 4)):
        passed = reading(schedule.zone, change) - reading(schedule.zone, change - SECOND)
        return FORWARD if passed > SECOND else BACK
    return UNEXPLAINED
