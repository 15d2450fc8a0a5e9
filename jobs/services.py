"""Every change of a job: one transaction each, with its audit entry.

Whatever moves the planned times locks the job's clock first, lets runs trigger what is due by now under the old
schedule in the same transaction, and only then sets the first time after now of the new one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from django.db import IntegrityError, transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs import signals, specs
from jobs.database_clock import database_now
from jobs.models import JOB_SLICES, Job, JobClock, JobStatus, JobVersion, Tenant
from jobs.refusals import ChangedMeanwhile, DuplicateName, InstantTaken, JobNotRunnable, Missing
from jobs.schedules import next_after
from jobs.targets import target_key
from scheduler_project.sdk.ids import MILLISECOND

Json = dict[str, Any]
PAUSABLE = (JobStatus.ACTIVE, JobStatus.UNRUNNABLE)
RESUMABLE = (JobStatus.PAUSED, JobStatus.UNRUNNABLE)
VERSIONED = (
    "target",
    "schedule",
    "timeout_ms",
    "overlap",
    "catch_up",
    "retry",
    "max_concurrency",
    "resources",
)


@dataclass(frozen=True)
class TakenInstant:
    """What a listener of `instant_asked` answers: the planned time has its run."""

    run_id: str
    state: str


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

    def set_status(self, status: JobStatus, note: str = "") -> None:
        self.job.status, self.job.status_note = status, note
        self.job.status_by, self.job.status_at = current_actor().name, self.now
        self.job.updated_at = self.now
        self.job.save(update_fields=["status", "status_note", "status_by", "status_at", "updated_at"])

    def first_time(self, schedule: Json | None, anchor: datetime) -> datetime | None:
        parsed = specs.read_schedule(schedule, str(self.job.pk))
        return next_after(parsed, self.now, anchor=anchor)


@transaction.atomic
def create_job(tenant: Tenant, data: object) -> Job:
    job_id = uuid4()
    given = specs.read_new(tenant, data, job_id)
    now = database_now()
    version = given.version_values()
    next_run_at = specs.first_time(version["schedule"], str(job_id), now, now)
    job = Job(
        id=job_id,
        tenant=tenant,
        status_by=current_actor().name,
        status_at=now,
        created_at=now,
        updated_at=now,
        **given.job_values(),
    )
    _insert_once_per_name(job)
    JobClock.objects.create(job=job, slice=job_id.int % JOB_SLICES, next_run_at=next_run_at)
    spec = _write_version(job, version, anchor=now)
    record(Action.JOB_CREATED, job, tenant_id=tenant.pk, after=facts(job, spec))
    return job


@transaction.atomic
def edit_job(job: Job, data: object, *, whole: bool = False, seen: str | None = None) -> Job:
    """Changes the fields that are given; a `whole` spec also sets those it leaves out to their defaults.

    Whoever says with `edition` what they have `seen` is refused when it is not the present one.
    """
    locked = lock(job)
    if seen is not None and seen != edition(locked.job):
        raise ChangedMeanwhile(
            "somebody has changed the job since this form was opened",
            hint="open it again and repeat your change",
        )
    if locked.job.status == JobStatus.CANCELLED:
        raise JobNotRunnable("the job is cancelled and cannot be changed", hint="create a new job")
    given = _read_edit(locked, data, whole)
    before = locked.facts()
    _change_spec(locked, given)
    _change_job(locked.job, given.job_values(), locked.now)
    after = locked.facts()
    if before != after:
        record(Action.JOB_EDITED, locked.job, tenant_id=locked.job.tenant_id, before=before, after=after)
    return locked.job


@transaction.atomic
def pause_job(job: Job, reason: str = "") -> Job:
    """A paused job has no planned times. Pausing it again changes nothing."""
    locked = lock(job)
    if locked.job.status == JobStatus.PAUSED:
        return locked.job
    _require_status(locked.job, PAUSABLE, "paused")
    before = locked.facts()
    _tell_missed_of_parked(locked)
    locked.set_next(None)
    locked.set_status(JobStatus.PAUSED, reason)
    _record_status(Action.JOB_PAUSED, locked, before, reason)
    return locked.job


@transaction.atomic
def resume_job(job: Job, reason: str = "") -> Job:
    """Goes on with the first time after now; what was not planned meanwhile is told as one span."""
    locked = lock(job)
    if locked.job.status == JobStatus.ACTIVE:
        return locked.job
    _require_status(locked.job, RESUMABLE, "resumed")
    before, held_back, since = locked.facts(), locked.job.status, _held_back_since(locked)
    upcoming = locked.first_time(locked.spec.schedule, locked.spec.anchor_at)
    over = upcoming is None and locked.spec.schedule is not None
    locked.set_next(upcoming)
    locked.set_status(JobStatus.FINISHED if over else JobStatus.ACTIVE)
    _tell_missed(locked, since, held_back)
    _record_status(Action.JOB_RESUMED, locked, before, reason)
    return locked.job


@transaction.atomic
def cancel_job(job: Job, reason: str = "") -> Job:
    """For good: no more planned times, and what is unfinished of it ends."""
    locked = lock(job)
    if locked.job.status == JobStatus.CANCELLED:
        return locked.job
    before = locked.facts()
    locked.set_next(None)
    locked.set_status(JobStatus.CANCELLED, reason)
    signals.job_stopped.send(Job, job=locked.job, now=locked.now, reason=reason or "the job was cancelled")
    _record_status(Action.JOB_CANCELLED, locked, before, reason)
    return locked.job


@transaction.atomic
def delete_job(job: Job, reason: str = "") -> None:
    """Soft: its runs stay readable, its name is free again."""
    locked = lock(job)
    before = locked.facts()
    locked.set_next(None)
    locked.job.deleted_at = locked.job.updated_at = locked.now
    locked.job.save(update_fields=["deleted_at", "updated_at"])
    signals.job_stopped.send(Job, job=locked.job, now=locked.now, reason=reason or "the job was deleted")
    record(Action.JOB_DELETED, locked.job, tenant_id=locked.job.tenant_id, before=before, reason=reason)


def lock(job: Job) -> LockedJob:
    """Takes the clock, then settles what is due by now. Everything read before this call may be stale."""
    clock = JobClock.objects.select_for_update().filter(job_id=job.pk).first()
    present = Job.objects.present().select_related("tenant", "pool").filter(pk=job.pk).first()
    if clock is None or present is None:
        raise Missing
    now = database_now()
    if clock.next_run_at is not None and clock.next_run_at <= now:
        signals.clock_locked.send(Job, job=present, now=now)
        clock.refresh_from_db()
        present.refresh_from_db()
    return LockedJob(present, clock, present.spec, now)


def edition(job: Job) -> str:
    """Another one after each change of the job, also of what no version holds."""
    return f"{job.version} {job.updated_at.isoformat()}"


def facts(job: Job, spec: JobVersion) -> Json:
    """The job as an audit entry shows it."""
    return {
        "name": job.name,
        "description": job.description,
        "status": job.status,
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
        "max_concurrency": spec.max_concurrency,
    }


def _read_edit(locked: LockedJob, data: object, whole: bool) -> specs.Given:
    if not whole:
        return specs.read_changes(locked.job, locked.spec, data)
    given = specs.read_new(locked.job.tenant, data, locked.job.pk)
    if given.values["schedule"] == locked.spec.schedule:
        del given.values["schedule"]
    return given


def _change_spec(locked: LockedJob, given: specs.Given) -> None:
    values, anchor = given.version_values(), locked.spec.anchor_at
    if "schedule" in values and _is_rearmed(locked, values["schedule"]):
        anchor = locked.now
        _rearm(locked, values["schedule"])
    present = {name: getattr(locked.spec, name) for name in VERSIONED}
    wanted = {**present, **values}
    if wanted != present or anchor != locked.spec.anchor_at:
        locked.job.version += 1
        locked.spec = _write_version(locked.job, wanted, anchor)


def _is_rearmed(locked: LockedJob, schedule: Json | None) -> bool:
    return schedule != locked.spec.schedule or locked.job.status == JobStatus.FINISHED


def _rearm(locked: LockedJob, schedule: Json | None) -> None:
    """The new schedule plans from now on; a job that had come to its end goes on."""
    if schedule and "at" in schedule:
        _refuse_taken_instant(locked.job, schedule)
    upcoming = specs.first_time(schedule, str(locked.job.pk), locked.now, locked.now)
    if locked.job.status in (JobStatus.FINISHED, JobStatus.UNRUNNABLE):
        _tell_missed_of_parked(locked)
        locked.set_status(JobStatus.ACTIVE)
    if locked.job.status == JobStatus.ACTIVE:
        locked.set_next(upcoming)
    elif locked.job.status == JobStatus.PAUSED:
        _tell_missed(locked, _held_back_since(locked), locked.job.status)


def _tell_missed_of_parked(locked: LockedJob) -> None:
    if locked.job.status == JobStatus.UNRUNNABLE:
        _tell_missed(locked, _held_back_since(locked), locked.job.status)


def _held_back_since(locked: LockedJob) -> datetime:
    """Times of the present schedule: what an earlier one missed was told when it was replaced."""
    return max(locked.job.status_at, locked.spec.anchor_at)


def _refuse_taken_instant(job: Job, schedule: Json) -> None:
    at = specs.read_schedule(schedule, str(job.pk)).at  # type: ignore[attr-defined]
    for _listener, taken in signals.instant_asked.send(Job, job=job, at=at):
        if isinstance(taken, TakenInstant):
            raise InstantTaken(
                f"{schedule['at']} has its run already: {taken.run_id}, {taken.state}",
                field="schedule.at",
                hint="choose another instant, or retry that run",
                link=f"/api/v1/runs/{taken.run_id}",
            )


def _tell_missed(locked: LockedJob, since: datetime, reason: str) -> None:
    """Only when a planned time lay in between; a schedule that cannot be read any more may have had some."""
    try:
        parsed = specs.read_schedule(locked.spec.schedule, str(locked.job.pk))
        first = next_after(parsed, since, anchor=locked.spec.anchor_at)
    except Exception:  # noqa: BLE001 - a parked job is parked because this raises
        first = since
    if first is not None and first <= locked.now:
        until = locked.now + MILLISECOND
        signals.times_missed.send(
            Job, job=locked.job, spec=locked.spec, from_at=first, to_at=until, reason=reason
        )


def _write_version(job: Job, values: Json, anchor: datetime) -> JobVersion:
    if job.version > 1:
        job.save(update_fields=["version"])
    spec = JobVersion.objects.create(
        job=job,
        version=job.version,
        target_key=target_key(values["target"]),
        anchor_at=anchor,
        created_by=current_actor().name,
        **values,
    )
    signals.spec_written.send(Job, job=job, spec=spec)
    return spec


def _change_job(job: Job, values: Json, now: datetime) -> None:
    for name, value in values.items():
        setattr(job, name, value)
    job.updated_at = now
    with _refusing_duplicate_name(job):
        job.save(update_fields=[*values, "updated_at"])


def _insert_once_per_name(job: Job) -> None:
    with _refusing_duplicate_name(job):
        job.save(force_insert=True)


@contextmanager
def _refusing_duplicate_name(job: Job) -> Iterator[None]:
    """The database decides who was first, in a savepoint of its own."""
    try:
        with transaction.atomic():
            yield
    except IntegrityError as error:
        if "job_name_once_per_tenant" not in str(error):
            raise
        raise DuplicateName(
            f"there is a job named {job.name!r} already",
            field="name",
            hint="choose another name, or change that job",
        ) from None


def _require_status(job: Job, allowed: tuple[JobStatus, ...], done: str) -> None:
    if job.status not in allowed:
        raise JobNotRunnable(
            f"the job is {job.status} and cannot be {done}",
            field="status",
            hint=f"only from {' or '.join(allowed)}",
        )


def _record_status(action: Action, locked: LockedJob, before: Json, reason: str) -> None:
    record(
        action, locked.job, tenant_id=locked.job.tenant_id, before=before, after=locked.facts(), reason=reason
    )
