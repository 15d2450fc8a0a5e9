"""Compare instants with the planned times of a job."""

from datetime import datetime

from jobs.errors import InstantTaken
from jobs.hooks import job_hooks
from jobs.models import Job, JobVersion
from jobs.schedules import Schedule, next_after, parse
from jobs.spec.calendar_lookup import working_time
from jobs.validation.instants import as_text
from scheduler_project.sdk.ids import MILLISECOND


def schedule_of(spec: JobVersion) -> Schedule:
    return parse(spec.schedule, str(spec.job_id), working_time(spec.calendar))


def is_planned(schedule: Schedule, at: datetime, anchor: datetime) -> bool:
    return next_after(schedule, at - MILLISECOND, anchor=anchor) == at


def refuse_taken_instant(job: Job, at: datetime, field: str) -> None:
    if taken := job_hooks().taken_instant(job, at):
        detail = f"{as_text(at)} has its run already: {taken.run_id}, {taken.state}"
        link, hint = f"/api/v1/runs/{taken.run_id}", "choose another instant, or retry that run"
        raise InstantTaken(detail, field=field, hint=hint, link=link)
