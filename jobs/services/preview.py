"""List the next planned times of a job, and the effect of overrides, windows and suspensions on each."""

from dataclasses import dataclass
from datetime import datetime

from jobs.models import Job, JobVersion, Override
from jobs.schedules import Schedule, jittered, upcoming
from jobs.services.occurrences import schedule_of
from jobs.suspensions.lookup import read_suspensions
from jobs.suspensions.rules import SuspensionRow, SuspensionSet


@dataclass(frozen=True)
class Ahead:
    """One planned time. `starts_at` is None when it gets no run of its own."""

    planned_at: datetime
    starts_at: datetime | None
    # How far a flexible window moves it.
    window_ends_at: datetime | None = None
    override: Override | None = None
    suspension: SuspensionRow | None = None
    held: bool = False

    @property
    def description(self) -> str:
        if self.override is not None and self.override.moved_to is None:
            return _with_reason(f"skipped by {self.override.created_by}", self.override.reason)
        if self.suspension is not None:
            return (
                f"held, {self.suspension.stored_reason}"
                if self.held
                else f"no run, {self.suspension.stored_reason}"
            )
        if self.override is not None:
            return _with_reason(f"moved by {self.override.created_by}", self.override.reason)
        return "flexible window" if self.window_ends_at is not None else ""


def look_ahead(job: Job, spec: JobVersion, now: datetime, number: int) -> list[Ahead]:
    """List the next planned times, and moved ones whose new time is still to come."""
    schedule = schedule_of(spec)
    times = upcoming(schedule, now, number, anchor=spec.anchor_at)
    overrides = {override.planned_at: override for override in job.overrides.filter(done_at=None)}
    moved = [at for at, override in overrides.items() if at <= now and override.moved_to is not None]
    instants = [*times, *(override.moved_to for override in overrides.values() if override.moved_to)]
    rules = read_suspensions(max(instants, default=now))
    return [_one(job, schedule, rules, at, overrides.get(at)) for at in sorted({*moved, *times})[:number]]


def _one(
    job: Job, schedule: Schedule, rules: SuspensionSet, at: datetime, override: Override | None
) -> Ahead:
    if override is not None and override.moved_to is None:
        return Ahead(at, None, override=override)
    goes_at = override.moved_to if override and override.moved_to else at
    spread = jittered(schedule, job.pk, at) if schedule.jitter and override is None else None
    ends = at + schedule.jitter if spread else None
    suspended = rules.suspends(job.tenant_id, job.pool_id, job.pk, job.tags, goes_at)
    if suspended is not None:
        return Ahead(at, None, ends, override, suspended)
    starts = spread or goes_at
    held = rules.holds(job.tenant_id, job.pool_id, job.pk, job.tags, starts)
    if held is not None:
        return Ahead(at, held.over_at, ends, override, held, held=True)
    return Ahead(at, starts, ends, override)


def _with_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what
