"""Lock a job for a change, and describe it for audit entries."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import ChangedMeanwhile, Missing
from jobs.hooks import job_hooks
from jobs.models import Job, JobClock, JobStatus, JobVersion
from jobs.schedules import Schedule
from jobs.services.occurrences import schedule_of
from jobs.spec.fields import FIELDS, stored
from jobs.validation.checks import Json
from jobs.validation.instants import as_text

STATUS_FIELDS = ("status", "status_reason", "status_by", "status_at", "paused_until", "updated_at")


@dataclass
class LockedJob:
    """A job whose clock is locked until the transaction ends, and the instant of the lock."""

    job: Job
    clock: JobClock
    spec: JobVersion
    now: datetime

    def audit_snapshot(self) -> Json:
        return audit_snapshot(self.job, self.spec)

    def record(self, action: Action, before: Json, reason: str, **more: Any) -> None:
        record(action, self.job, before=before, after={**self.audit_snapshot(), **more}, reason=reason)

    def set_next(self, next_run_at: datetime | None) -> None:
        if self.clock.next_run_at != next_run_at:
            self.clock.next_run_at = next_run_at
            self.clock.save(update_fields=["next_run_at"])

    def keep_priority(self) -> None:
        """Copy the priority to the clock, which orders the jobs that are due together."""
        if self.clock.priority != self.job.priority:
            self.clock.priority = self.job.priority
            self.clock.save(update_fields=["priority"])

    def set_status(self, status: JobStatus, reason: str = "", until: datetime | None = None) -> None:
        self.job.status, self.job.status_reason, self.job.paused_until = status, reason, until
        self.job.status_by, self.job.status_at = current_actor().name, self.now
        self.job.updated_at = self.now
        self.job.save(update_fields=STATUS_FIELDS)

    def make_unrunnable(self, reason: str) -> None:
        """Stop planning a job whose schedule raises."""
        before = self.audit_snapshot()
        self.set_next(None)
        self.set_status(JobStatus.UNRUNNABLE, reason)
        self.record(Action.JOB_UNRUNNABLE, before, reason)

    def schedule(self) -> Schedule:
        return schedule_of(self.spec)

    def plan(self, regular: datetime | None) -> None:
        """Set the clock to the next time of the schedule or to an earlier time that was moved."""
        moves = self.job.overrides.filter(done_at=None, moved_to__isnull=False)
        earliest = moves.order_by("moved_to").values_list("moved_to", flat=True).first()
        self.set_next(min((at for at in (regular, earliest) if at is not None), default=None))


def edition(job: Job) -> str:
    return edition_of(job.version, job.status, as_text(job.updated_at))


def edition_of(version: int, status: str, updated_at: str) -> str:
    """Identify the definition and the status of a job. What the trigger moves is no part of it."""
    return f"{version}-{status}-{updated_at}"


def lock(job: Job, seen: Collection[str] | None = None) -> LockedJob:
    """Lock the clock and the job, then settle what is due by now. What was read before may be stale.

    The job comes before its gate, which settling may take: a retry has the job, and asks for the gate. A caller that
    names the editions it has `seen` is refused when none of them is the present one. The locks are held to the end of
    the transaction, so of two changes that have seen the same edition the second is refused.
    """
    clock = JobClock.objects.select_for_update().filter(job_id=job.pk).first()
    jobs = Job.objects.present().select_for_update(no_key=True, of=("self",))
    present = jobs.select_related("tenant", "pool").filter(pk=job.pk).first()
    if clock is None or present is None:
        raise Missing
    now = database_now()
    if clock.next_run_at is not None and clock.next_run_at <= now:
        job_hooks().settle_due(present, now)
        clock.refresh_from_db()
        present.refresh_from_db()
    locked = LockedJob(present, clock, present.spec, now)
    if seen is not None and edition(present) not in seen:
        raise _changed(locked)
    return locked


def _changed(locked: LockedJob) -> ChangedMeanwhile:
    job, spec = locked.job, locked.spec
    # An edit gives its version and the job one instant; anything later has changed the status.
    who = spec.created_by if spec.created_at == job.updated_at else job.status_by
    state = f"it is {job.status}, at version {job.version}"
    detail = f"{who or 'somebody'} has changed the job at {as_text(job.updated_at)}: {state}"
    return ChangedMeanwhile(detail, hint="read it again, then repeat your change")


def limit_waiting(longest: str, limits: tuple[str, ...] = ("lock_timeout",)) -> None:
    """Bound how long this transaction waits, so that it does not delay what comes after it."""
    with connection.cursor() as cursor:
        for limit in limits:
            cursor.execute(f"SET LOCAL {limit} = '{longest}'")


def audit_snapshot(job: Job, spec: JobVersion) -> Json:
    """Describe the job as an audit entry shows it."""
    fields = {field.column: field.as_audited(stored(field, job, spec)) for field in FIELDS.values()}
    return {
        **fields,
        "status": job.status,
        "paused_until": job.paused_until and as_text(job.paused_until),
        "version": spec.version,
    }
