"""What stands ahead of a job: its next planned times, and what changes, windows and stops make of each."""

from dataclasses import dataclass
from datetime import datetime

from jobs import stops
from jobs.models import Job, JobVersion, PlannedChange
from jobs.planned_times import schedule_of
from jobs.schedules import jittered, upcoming
from jobs.stop_rules import StopRow, Stops


@dataclass(frozen=True)
class Ahead:
    """One planned time. `starts_at` is None when it gets no run of its own."""

    planned_at: datetime
    starts_at: datetime | None
    # How far a flexible window moves it.
    window_ends_at: datetime | None = None
    change: PlannedChange | None = None
    stop: StopRow | None = None
    held: bool = False

    @property
    def in_words(self) -> str:
        if self.change is not None and self.change.moved_to is None:
            return _with_note(f"skipped by {self.change.made_by}", self.change.note)
        if self.stop is not None:
            return f"held, {self.stop.reason}" if self.held else f"no run, {self.stop.reason}"
        if self.change is not None:
            return _with_note(f"moved by {self.change.made_by}", self.change.note)
        return "flexible window" if self.window_ends_at is not None else ""


def look_ahead(job: Job, spec: JobVersion, now: datetime, number: int) -> list[Ahead]:
    """The next planned times, and before them those that were moved and whose time is still to come."""
    schedule = schedule_of(spec)
    times = upcoming(schedule, now, number, anchor=spec.anchor_at)
    changes = {change.planned_at: change for change in job.planned_changes.filter(done_at=None)}
    moved = [at for at, change in changes.items() if at <= now and change.moved_to is not None]
    instants = [*times, *(change.moved_to for change in changes.values() if change.moved_to)]
    rules = stops.read_stops(max(instants, default=now))
    found = []
    for at in sorted({*moved, *times})[:number]:
        change = changes.get(at)
        spread = jittered(schedule, job.pk, at) if schedule.jitter and change is None else None
        found.append(_one(job, rules, at, change, spread, at + schedule.jitter))
    return found


def _one(
    job: Job,
    rules: Stops,
    planned_at: datetime,
    change: PlannedChange | None,
    spread: datetime | None,
    window_ends_at: datetime,
) -> Ahead:
    if change is not None and change.moved_to is None:
        return Ahead(planned_at, None, change=change)
    goes_at = change.moved_to if change and change.moved_to else planned_at
    ends = window_ends_at if spread else None
    suspended = rules.suspends(job.tenant_id, job.pool_id, job.tags, goes_at)
    if suspended is not None:
        return Ahead(planned_at, None, ends, change, suspended)
    starts = spread or goes_at
    held = rules.holds(job.tenant_id, job.pool_id, job.tags, starts)
    if held is not None:
        return Ahead(planned_at, held.over_at, ends, change, held, held=True)
    return Ahead(planned_at, starts, ends, change)


def _with_note(what: str, note: str) -> str:
    return f"{what}: {note}" if note else what
