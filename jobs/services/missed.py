"""Find the planned times that a job missed while it was held back, and settle them."""

from datetime import datetime

from jobs.hooks import Missed, job_hooks
from jobs.models import Job, JobStatus, JobVersion
from jobs.schedules import next_after
from jobs.services.locking import LockedJob
from jobs.services.occurrences import schedule_of
from jobs.validation.checks import Json
from jobs.validation.instants import as_text
from scheduler_project.sdk.ids import MILLISECOND

HELD_BACK = (JobStatus.PAUSED, JobStatus.UNRUNNABLE)


def missed_json(missed: Missed) -> Json:
    return {
        "count": missed.count,
        "exact": missed.exact,
        "first_at": as_text(missed.first_at),
        "last_at": as_text(missed.last_at),
        "policy": missed.policy,
        "runs": missed.runs,
    }


def first_missed(spec: JobVersion, since: datetime, ends_at: datetime) -> datetime | None:
    """Find the first time after `since` that was missed; an unreadable schedule may have had some."""
    try:
        first = next_after(schedule_of(spec), since, anchor=spec.anchor_at)
    except Exception:  # noqa: BLE001 - an unrunnable job is so because this raises
        first = since
    return first if first is not None and first < ends_at else None


def held_back_since(job: Job, spec: JobVersion) -> datetime:
    """Return since when the present schedule is held back; what an earlier one missed is recorded."""
    return max(job.status_at, spec.anchor_at)


def missed_so_far(job: Job, spec: JobVersion, now: datetime, policy: str | None = None) -> Missed | None:
    """Foresee what resuming a held job now would find, and do by this policy or its own."""
    if job.status not in HELD_BACK:
        return None
    ends_at = end_of_gap(job, now)
    first = first_missed(spec, held_back_since(job, spec), ends_at)
    return job_hooks().foresee_missed(spec, first, ends_at, policy) if first else None


def end_of_gap(job: Job, now: datetime) -> datetime:
    """End the interval with the pause, if its end has passed: times planned after it stand."""
    until = job.paused_until
    return until if until is not None and until <= now else now + MILLISECOND


def skip_missed(locked: LockedJob) -> None:
    """Record times missed under a schedule that is replaced, or before a pause; they are not caught up."""
    ends_at = locked.now + MILLISECOND
    first = first_missed(locked.spec, held_back_since(locked.job, locked.spec), ends_at)
    if first is not None:
        job_hooks().settle_missed(locked.spec, first, ends_at, locked.job.status, "skip")
