"""The planned times of a job as it is now, and which of them have their run."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobs import signals, specs
from jobs.instants import as_text
from jobs.models import Job, JobVersion
from jobs.refusals import InstantTaken
from jobs.schedules import Schedule, last_before, next_after
from jobs.working_times import working_time
from scheduler_project.sdk.ids import EPOCH, MILLISECOND


@dataclass(frozen=True)
class TakenInstant:
    """What a listener of `instant_asked` answers: the planned time has its run."""

    run_id: str
    state: str


def schedule_of(spec: JobVersion) -> Schedule:
    return specs.read_schedule(spec.schedule, str(spec.job_id), working_time(spec.calendar))


def is_planned(schedule: Schedule, at: datetime, anchor: datetime) -> bool:
    return next_after(schedule, at - MILLISECOND, anchor=anchor) == at


def nearest(schedule: Schedule, at: datetime, anchor: datetime) -> list[datetime]:
    """The planned time before this instant and the one after it, as far as there are any."""
    before = last_before(schedule, at, anchor=anchor, not_before=EPOCH)
    after = next_after(schedule, at, anchor=anchor)
    return [found for found in (before, after) if found is not None]


def taken_by(job: Job, at: datetime) -> TakenInstant | None:
    answers: list[tuple[Any, Any]] = signals.instant_asked.send(Job, job=job, at=at)
    return next((taken for _listener, taken in answers if isinstance(taken, TakenInstant)), None)


def told_until(job: Job, at: datetime) -> datetime | None:
    """The end of the missed times among which it was told already."""
    answers: list[tuple[Any, Any]] = signals.missed_instant_asked.send(Job, job=job, at=at)
    return next((end for _listener, end in answers if isinstance(end, datetime)), None)


def refuse_taken_instant(job: Job, at: datetime, field: str) -> None:
    if taken := taken_by(job, at):
        raise InstantTaken(
            f"{as_text(at)} has its run already: {taken.run_id}, {taken.state}",
            field=field,
            hint="choose another instant, or retry that run",
            link=f"/api/v1/runs/{taken.run_id}",
        )
