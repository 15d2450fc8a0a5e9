"""Change the status of a job: pause, resume and cancel it."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID

import psycopg
from django.db import DatabaseError, transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from jobs.errors import JobNotRunnable
from jobs.hooks import Missed, job_hooks
from jobs.models import Job, JobStatus
from jobs.schedules import next_after
from jobs.services.locking import LockedJob, lock
from jobs.services.missed import end_of_gap, first_missed, held_back_since, missed_json, skip_missed
from jobs.validation.checks import invalid
from jobs.validation.instants import as_text
from scheduler_project.sdk.ids import MILLISECOND

PAUSABLE = (JobStatus.ACTIVE, JobStatus.UNRUNNABLE)
RESUMABLE = (JobStatus.PAUSED, JobStatus.UNRUNNABLE)


class Unchanged(Enum):
    """Stands for what a request leaves out, where null means something else."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True)
class Resumed:
    job: Job
    missed: Missed | None = None


@transaction.atomic
def pause_job(
    job: Job,
    reason: str = "",
    until: datetime | None | Unchanged = UNCHANGED,
    *,
    seen: Collection[str] | None = None,
) -> Job:
    """Pause a job, so that it has no planned times; with `until` it goes on by itself then.

    Pausing it again changes nothing but until when.
    """
    locked = lock(job, seen)
    until = _read_until(locked, until)
    if locked.job.status == JobStatus.PAUSED and locked.job.paused_until == until:
        return locked.job
    before = locked.audit_snapshot()
    if locked.job.status == JobStatus.PAUSED:
        locked.job.paused_until, locked.job.updated_at = until, locked.now
        locked.job.status_by = current_actor().name
        locked.job.save(update_fields=["paused_until", "status_by", "updated_at"])
    else:
        _require_status(locked.job, PAUSABLE, "paused")
        if locked.job.status == JobStatus.UNRUNNABLE:
            skip_missed(locked)
        locked.set_next(None)
        locked.set_status(JobStatus.PAUSED, reason, until)
    locked.record(Action.JOB_PAUSED, before, reason)
    return locked.job


def resume_job(job: Job, reason: str = "") -> Job:
    return resume_with(job, reason).job


@transaction.atomic
def resume_with(
    job: Job, reason: str = "", catch_up: str | None = None, *, seen: Collection[str] | None = None
) -> Resumed:
    """Resume with the first time after now; settle what was missed by the job's policy, or by this one."""
    locked = lock(job, seen)
    if locked.job.status == JobStatus.ACTIVE:
        return Resumed(locked.job)
    _require_status(locked.job, RESUMABLE, "resumed")
    return _resume(locked, reason, catch_up)


def resume_when_due(job_id: UUID) -> Resumed | None:
    """Resume a job whose pause has ended; return None if somebody was faster."""
    with transaction.atomic():
        locked = lock(Job(pk=job_id))
        until = locked.job.paused_until
        if locked.job.status != JobStatus.PAUSED or until is None or until > locked.now:
            return None
        try:
            with transaction.atomic():
                return _resume(locked, "the end of its pause has come", None)
        except (DatabaseError, psycopg.Error):
            raise
        except Exception as error:  # a schedule that raises makes its job unrunnable, whatever it raises
            locked.job.refresh_from_db()
            locked.clock.refresh_from_db()
            skip_missed(locked)
            locked.make_unrunnable(f"It cannot be resumed: {error}")
            return None


def _resume(locked: LockedJob, reason: str, catch_up: str | None) -> Resumed:
    before, held_back = locked.audit_snapshot(), locked.job.status
    since = held_back_since(locked.job, locked.spec)
    over_at = end_of_gap(locked.job, locked.now)
    upcoming = next_after(locked.schedule(), max(over_at - MILLISECOND, since), anchor=locked.spec.anchor_at)
    locked.set_status(JobStatus.ACTIVE)
    first = first_missed(locked.spec, since, over_at)
    missed = job_hooks().settle_missed(locked.spec, first, over_at, held_back, catch_up) if first else None
    locked.plan(upcoming)
    if locked.clock.next_run_at is None and locked.spec.schedule is not None:
        locked.set_status(JobStatus.FINISHED)
    more = {"missed": missed_json(missed)} if missed else {}
    locked.record(Action.JOB_RESUMED, before, reason, **more)
    return Resumed(locked.job, missed)


@transaction.atomic
def cancel_job(job: Job, reason: str = "", *, seen: Collection[str] | None = None) -> Job:
    """Cancel a job for good: it has no more planned times, and its unfinished runs end."""
    locked = lock(job, seen)
    if locked.job.status == JobStatus.CANCELLED:
        return locked.job
    before = locked.audit_snapshot()
    locked.set_next(None)
    locked.set_status(JobStatus.CANCELLED, reason)
    job_hooks().job_ended(locked.job, locked.now, reason or "the job was cancelled")
    locked.record(Action.JOB_CANCELLED, before, reason)
    return locked.job


def _read_until(locked: LockedJob, until: datetime | None | Unchanged) -> datetime | None:
    if isinstance(until, Unchanged):
        return locked.job.paused_until if locked.job.status == JobStatus.PAUSED else None
    if until is not None and until <= locked.now:
        raise invalid("until", f"{as_text(until)} is in the past", f"it is now {as_text(locked.now)}", "past")
    return until


def _require_status(job: Job, allowed: tuple[JobStatus, ...], done: str) -> None:
    if job.status not in allowed:
        detail = f"the job is {job.status} and cannot be {done}"
        raise JobNotRunnable(detail, field="status", hint=f"only from {' or '.join(allowed)}")
