"""A job that is about to be changed, and what of it an audit entry shows."""

from dataclasses import dataclass
from datetime import datetime

from auditlog.context import current_actor
from jobs import signals
from jobs.database_clock import database_now
from jobs.input_checks import Json
from jobs.instants import as_text
from jobs.models import Job, JobClock, JobStatus, JobVersion
from jobs.planned_times import schedule_of
from jobs.refusals import Missing
from jobs.schedules import Schedule, next_after

STATUS_FIELDS = ("status", "status_note", "status_by", "status_at", "paused_until", "updated_at")


@dataclass
class LockedJob:
    """A job whose clock is ours until the transaction ends, and the instant at which it became so."""

    job: Job
    clock: JobClock
    spec: JobVersion
    now: datetime

    def facts(self) -> Json:
        return facts(self.job, self.spec)

    def set_next(self, next_run_at: datetime | None) -> None:
        if self.clock.next_run_at != next_run_at:
            self.clock.next_run_at = next_run_at
            self.clock.save(update_fields=["next_run_at"])

    def keep_priority(self) -> None:
        """The clock has it too, for the order among those that are due together."""
        if self.clock.priority != self.job.priority:
            self.clock.priority = self.job.priority
            self.clock.save(update_fields=["priority"])

    def set_status(self, status: JobStatus, note: str = "", until: datetime | None = None) -> None:
        self.job.status, self.job.status_note, self.job.paused_until = status, note, until
        self.job.status_by, self.job.status_at = current_actor().name, self.now
        self.job.updated_at = self.now
        self.job.save(update_fields=STATUS_FIELDS)

    def schedule(self) -> Schedule:
        return schedule_of(self.spec)

    def next_regular(self) -> datetime | None:
        return next_after(self.schedule(), self.now, anchor=self.spec.anchor_at)

    def plan(self, regular: datetime | None) -> None:
        """The clock goes to what comes first: the next time of the schedule, or one that was moved."""
        moves = self.job.planned_changes.filter(done_at=None, moved_to__isnull=False)
        earliest = moves.order_by("moved_to").values_list("moved_to", flat=True).first()
        self.set_next(min((at for at in (regular, earliest) if at is not None), default=None))


def lock(job: Job) -> LockedJob:
    """Takes the clock and the job, then settles what is due by now. Everything read before this call may be stale.

    The job comes before its gate, which settling may take: a retry has the job, and asks for the gate.
    """
    clock = JobClock.objects.select_for_update().filter(job_id=job.pk).first()
    jobs = Job.objects.present().select_for_update(no_key=True, of=("self",))
    present = jobs.select_related("tenant", "pool").filter(pk=job.pk).first()
    if clock is None or present is None:
        raise Missing
    now = database_now()
    if clock.next_run_at is not None and clock.next_run_at <= now:
        signals.clock_locked.send(Job, job=present, now=now)
        clock.refresh_from_db()
        present.refresh_from_db()
    return LockedJob(present, clock, present.spec, now)


def facts(job: Job, spec: JobVersion) -> Json:
    """The job as an audit entry shows it."""
    return {
        "name": job.name,
        "description": job.description,
        "status": job.status,
        "paused_until": job.paused_until and as_text(job.paused_until),
        "pool": job.pool.slug,
        "priority": job.priority,
        "tags": job.tags,
        "version": spec.version,
        "target": spec.target,
        "schedule": spec.schedule,
        "timeout_ms": spec.timeout_ms,
        "overlap": spec.overlap,
        "catch_up": spec.catch_up,
        "retry": spec.retry,
        "breaker": spec.breaker,
        "max_concurrency": spec.max_concurrency,
    }
