"""Compare instants with the planned times of a job."""

from collections.abc import Iterable
from datetime import datetime

from jobs.errors import InstantTaken
from jobs.hooks import job_hooks
from jobs.models import Job, JobVersion, Override
from jobs.schedules import Schedule, next_after, parse
from jobs.spec.calendar_lookup import working_time
from jobs.validation.instants import as_text
from scheduler_project.sdk.ids import MILLISECOND


def schedule_of(spec: JobVersion) -> Schedule:
    return parse(spec.schedule, str(spec.job_id), working_time(spec.calendar))


def is_planned(schedule: Schedule, at: datetime, anchor: datetime) -> bool:
    return next_after(schedule, at - MILLISECOND, anchor=anchor) == at


def next_run_of(job: Job, spec: JobVersion, overrides: Iterable[Override]) -> datetime | None:
    """Return when the next run of a job goes: past the times that a person skipped, and with those that were moved.

    The clock also stands at times that get no run, because the trigger must come by to say so.
    """
    due_at, changed = job.clock.next_run_at, {override.planned_at: override for override in overrides}
    if due_at is None or not changed:
        return due_at
    schedule, anchor = schedule_of(spec), spec.anchor_at
    # The clock may stand at an instant that a time was moved to.
    regular = next_after(schedule, max(due_at - MILLISECOND, anchor), anchor=anchor)
    while regular is not None and regular in changed:
        regular = next_after(schedule, regular, anchor=anchor)
    moved = (override.moved_to for override in changed.values())
    return min((at for at in (regular, *moved) if at is not None), default=None)


def refuse_taken_instant(job: Job, at: datetime, field: str) -> None:
    if taken := job_hooks().taken_instant(job, at):
        detail = f"{as_text(at)} has its run already: {taken.run_id}, {taken.state}"
        link, hint = f"/api/v1/runs/{taken.run_id}", "choose another instant, or retry that run"
        raise InstantTaken(detail, field=field, hint=hint, link=link)
