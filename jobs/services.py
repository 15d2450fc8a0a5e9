"""Every change of a job: one transaction each, with its audit entry.

Whatever moves the planned times locks the job's clock first, lets runs trigger what is due by now under the old
schedule in the same transaction, and only then sets the first time after now of the new one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from uuid import UUID, uuid4

import psycopg
from django.db import DatabaseError, IntegrityError, transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs import signals, specs
from jobs.database_clock import database_now
from jobs.input_checks import Json, refused
from jobs.instants import as_text
from jobs.locked_job import LockedJob, facts, lock
from jobs.missed import Gap, Missed, answer, end_of_gap, gap_of, held_back_since
from jobs.models import JOB_SLICES, Calendar, Job, JobClock, JobStatus, JobVersion, Tenant
from jobs.planned_changes import drop_changes
from jobs.planned_times import refuse_taken_instant
from jobs.refusals import ChangedMeanwhile, DuplicateName, JobNotRunnable
from jobs.schedules import Schedule, next_after
from jobs.targets import target_key
from jobs.working_times import working_time
from scheduler_project.sdk.ids import EPOCH, MILLISECOND
from scheduler_project.sdk.references import names_in

PAUSABLE = (JobStatus.ACTIVE, JobStatus.UNRUNNABLE)
RESUMABLE = (JobStatus.PAUSED, JobStatus.UNRUNNABLE)
VERSIONED = (
    "target",
    "schedule",
    "timeout_ms",
    "overlap",
    "catch_up",
    "retry",
    "breaker",
    "max_concurrency",
    "resources",
    "calendar",
)


class Unchanged(Enum):
    """Stands for what a request leaves out, where null means something else."""

    UNCHANGED = "unchanged"


UNCHANGED = Unchanged.UNCHANGED


@dataclass(frozen=True)
class Resumed:
    job: Job
    missed: Missed | None = None


@transaction.atomic
def create_job(tenant: Tenant, data: object) -> Job:
    job_id = uuid4()
    given = specs.read_new(tenant, data, job_id)
    now = database_now()
    version = given.version_values()
    next_run_at = specs.first_time(version["schedule"], str(job_id), now, now, version["calendar"])
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
    JobClock.objects.create(
        job=job, slice=job_id.int % JOB_SLICES, next_run_at=next_run_at, priority=job.priority
    )
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
    dropped = _change_spec(locked, given)
    _change_job(locked.job, given.job_values(), locked.now)
    locked.keep_priority()
    after = locked.facts()
    if dropped:
        after["dropped_changes"] = dropped
    if before != after:
        record(Action.JOB_EDITED, locked.job, tenant_id=locked.job.tenant_id, before=before, after=after)
    return locked.job


@transaction.atomic
def pause_job(job: Job, reason: str = "", until: datetime | None | Unchanged = UNCHANGED) -> Job:
    """A paused job has no planned times; with `until` it goes on by itself then.

    Pausing it again changes nothing but until when.
    """
    locked = lock(job)
    until = _read_until(locked, until)
    if locked.job.status == JobStatus.PAUSED and locked.job.paused_until == until:
        return locked.job
    before = locked.facts()
    if locked.job.status == JobStatus.PAUSED:
        locked.job.paused_until, locked.job.updated_at = until, locked.now
        locked.job.save(update_fields=["paused_until", "updated_at"])
    else:
        _require_status(locked.job, PAUSABLE, "paused")
        _tell_missed_of_parked(locked)
        locked.set_next(None)
        locked.set_status(JobStatus.PAUSED, reason, until)
    _record_status(Action.JOB_PAUSED, locked, before, reason)
    return locked.job


def resume_job(job: Job, reason: str = "") -> Job:
    return resume_with(job, reason).job


@transaction.atomic
def resume_with(job: Job, reason: str = "", catch_up: str | None = None) -> Resumed:
    """Goes on with the first time after now. What was missed is settled by its catch-up policy, or by this one."""
    locked = lock(job)
    if locked.job.status == JobStatus.ACTIVE:
        return Resumed(locked.job)
    _require_status(locked.job, RESUMABLE, "resumed")
    return _resume(locked, reason, catch_up)


def resume_when_due(job_id: UUID) -> Resumed | None:
    """The pause's own end has come. None: somebody resumed, prolonged or ended it first."""
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
        except Exception as error:  # a schedule that raises parks its job, whatever it raises
            _park(locked, f"It cannot be resumed: {error}")
            return None


def _park(locked: LockedJob, note: str) -> None:
    locked.job.refresh_from_db()
    locked.clock.refresh_from_db()
    before = locked.facts()
    _tell_missed(locked, held_back_since(locked.job, locked.spec), locked.job.status)
    locked.set_status(JobStatus.UNRUNNABLE, note)
    _record_status(Action.JOB_UNRUNNABLE, locked, before, note)


def _resume(locked: LockedJob, reason: str, catch_up: str | None) -> Resumed:
    before, held_back, since = locked.facts(), locked.job.status, held_back_since(locked.job, locked.spec)
    over_at = end_of_gap(locked.job, locked.now)
    upcoming = next_after(locked.schedule(), max(over_at - MILLISECOND, since), anchor=locked.spec.anchor_at)
    locked.set_status(JobStatus.ACTIVE)
    gap = gap_of(locked.spec, since, over_at)
    missed = _settle(locked, gap, held_back, catch_up) if gap else None
    locked.plan(upcoming)
    if locked.clock.next_run_at is None and locked.spec.schedule is not None:
        locked.set_status(JobStatus.FINISHED)
    after = {**locked.facts(), **({"missed": missed.as_json()} if missed else {})}
    record(
        Action.JOB_RESUMED,
        locked.job,
        tenant_id=locked.job.tenant_id,
        before=before,
        after=after,
        reason=reason,
    )
    return Resumed(locked.job, missed)


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


def edition(job: Job) -> str:
    """Another one after each change of the job, also of what no version holds."""
    return f"{job.version} {job.updated_at.isoformat()}"


def _read_until(locked: LockedJob, until: datetime | None | Unchanged) -> datetime | None:
    if isinstance(until, Unchanged):
        return locked.job.paused_until if locked.job.status == JobStatus.PAUSED else None
    if until is not None and until <= locked.now:
        raise refused("until", f"{as_text(until)} is in the past", f"it is now {as_text(locked.now)}", "past")
    return until


def _read_edit(locked: LockedJob, data: object, whole: bool) -> specs.Given:
    if not whole:
        return specs.read_changes(locked.job, locked.spec, data)
    given = specs.read_new(locked.job.tenant, data, locked.job.pk)
    if given.values["schedule"] == locked.spec.schedule:
        del given.values["schedule"]
    return given


def _change_spec(locked: LockedJob, given: specs.Given) -> list[Json]:
    """Returns the changes of single times that the new schedule has no use for."""
    values, anchor, dropped = given.version_values(), locked.spec.anchor_at, list[Json]()
    if "schedule" in values and _is_rearmed(locked, values["schedule"]):
        anchor = locked.now
        working = working_time(values["calendar"])
        parsed = specs.read_schedule(values["schedule"], str(locked.job.pk), working)
        dropped = drop_changes(locked, parsed, anchor)
        _rearm(locked, values["schedule"], values["calendar"])
    present = {name: getattr(locked.spec, name) for name in VERSIONED}
    wanted = {**present, **values}
    if wanted != present or anchor != locked.spec.anchor_at:
        locked.job.version += 1
        locked.spec = _write_version(locked.job, wanted, anchor)
    return dropped


def _is_rearmed(locked: LockedJob, schedule: Json | None) -> bool:
    return schedule != locked.spec.schedule or locked.job.status == JobStatus.FINISHED


def _rearm(locked: LockedJob, schedule: Json | None, calendar: Calendar | None) -> None:
    """The new schedule plans from now on; a job that had come to its end goes on."""
    if schedule and "at" in schedule:
        _refuse_taken(locked, specs.read_schedule(schedule, str(locked.job.pk), working_time(calendar)))
    upcoming = specs.first_time(schedule, str(locked.job.pk), locked.now, locked.now, calendar)
    if locked.job.status in (JobStatus.FINISHED, JobStatus.UNRUNNABLE):
        _tell_missed_of_parked(locked)
        locked.set_status(JobStatus.ACTIVE)
    if locked.job.status == JobStatus.ACTIVE:
        locked.plan(upcoming)
    elif locked.job.status == JobStatus.PAUSED:
        _tell_missed(locked, held_back_since(locked.job, locked.spec), locked.job.status)


def _tell_missed_of_parked(locked: LockedJob) -> None:
    if locked.job.status == JobStatus.UNRUNNABLE:
        _tell_missed(locked, held_back_since(locked.job, locked.spec), locked.job.status)


def _refuse_taken(locked: LockedJob, once: Schedule) -> None:
    at = next_after(once, EPOCH, anchor=locked.now)
    if at is not None:
        refuse_taken_instant(locked.job, at, "schedule.at")


def _tell_missed(locked: LockedJob, since: datetime, reason: str) -> None:
    """Of a schedule that is replaced, or a pause that follows: nobody makes up for them."""
    gap = gap_of(locked.spec, since, locked.now + MILLISECOND)
    if gap is not None:
        _settle(locked, gap, reason, "skip")


def _settle(locked: LockedJob, gap: Gap, reason: str, policy: str | None) -> Missed | None:
    return answer(
        signals.times_missed.send(
            Job,
            job=locked.job,
            spec=locked.spec,
            from_at=gap.from_at,
            to_at=gap.to_at,
            now=locked.now,
            reason=reason,
            policy=policy,
        )
    )


def _write_version(job: Job, values: Json, anchor: datetime) -> JobVersion:
    if job.version > 1:
        job.save(update_fields=["version"])
    spec = JobVersion.objects.create(
        job=job,
        version=job.version,
        target_key=target_key(values["target"]),
        secret_names=names_in(values["target"]),
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
