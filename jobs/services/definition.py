"""Create, edit and delete jobs: one transaction each, with its audit entry.

Whatever moves the planned times locks the job's clock first, lets runs trigger what is due by now under the old
schedule in the same transaction, and only then sets the first time after now of the new one.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import uuid4

from django.db import transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import DuplicateName, JobNotRunnable
from jobs.hooks import job_hooks
from jobs.models import JOB_SLICES, Calendar, Job, JobClock, JobStatus, JobVersion, Tenant
from jobs.schedules import next_after, parse
from jobs.services.locking import LockedJob, audit_snapshot, lock
from jobs.services.missed import skip_missed
from jobs.services.occurrences import refuse_taken_instant
from jobs.services.overrides import drop_overrides
from jobs.spec import reading
from jobs.spec.calendar_lookup import working_time
from jobs.spec.fields import FIELDS, JOB_COLUMNS, VERSION_COLUMNS, fields_json
from jobs.spec.merging import merged, not_kept
from jobs.spec.schedule import first_time
from jobs.spec.targets import target_key
from jobs.validation.checks import Json, abbreviate, expect_object
from jobs.validation.rows import refusing_duplicate_name
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.secret_values.references import names_in

UNVERSIONED = [field for field in FIELDS.values() if not field.versioned]


def create_job(tenant: Tenant, data: object) -> Job:
    return create_with_spec(tenant, data)[0]


@transaction.atomic
def create_with_spec(tenant: Tenant, data: object) -> tuple[Job, JobVersion]:
    """Create a job, and return its first version with it."""
    job_id = uuid4()
    given = reading.read_new(tenant, data, job_id)
    now = database_now()
    version = _of(given, VERSION_COLUMNS)
    next_run_at = first_time(version["schedule"], str(job_id), now, version["calendar"])
    job = Job(
        id=job_id,
        tenant=tenant,
        status_by=current_actor().name,
        status_at=now,
        created_at=now,
        updated_at=now,
        **_of(given, JOB_COLUMNS),
    )
    with _refusing_duplicate_name(job):
        job.save(force_insert=True)
    JobClock.objects.create(
        job=job, slice=job_id.int % JOB_SLICES, next_run_at=next_run_at, priority=job.priority
    )
    spec = _write_version(job, version, anchor=now)
    record(Action.JOB_CREATED, job, after=audit_snapshot(job, spec))
    return job, spec


@transaction.atomic
def edit_job(job: Job, data: object, *, whole: bool = False, seen: Collection[str] | None = None) -> Job:
    """Change the fields that are given; a `whole` spec also sets those it leaves out to their defaults."""
    locked = _lock_for_edit(job, seen)
    if whole:
        given = reading.read_new(locked.job.tenant, data, locked.job.pk)
        if given["schedule"] == locked.spec.schedule:
            del given["schedule"]
    else:
        given = reading.read_changes(locked.job, locked.spec, data)
    return _edit(locked, given)


@transaction.atomic
def patch_job(job: Job, patch: object, *, seen: Collection[str] | None = None) -> tuple[Job, list[str]]:
    """Apply a JSON merge patch (RFC 7396); return also what a change of kind did not keep."""
    locked = _lock_for_edit(job, seen)
    given, present = expect_object(patch, ""), fields_json(locked.job, locked.spec)
    job = _edit(locked, reading.read_changes(locked.job, locked.spec, merged(present, given)))
    return job, not_kept(present, given, fields_json(job, locked.spec))


def _lock_for_edit(job: Job, seen: Collection[str] | None) -> LockedJob:
    locked = lock(job, seen)
    if locked.job.status == JobStatus.CANCELLED:
        raise JobNotRunnable("the job is cancelled and cannot be changed", hint="create a new job")
    return locked


def _edit(locked: LockedJob, given: Json) -> Job:
    """Write the next version, if the columns that are given change anything."""
    before = locked.audit_snapshot()
    anchor, dropped = _change_schedule(locked, given)
    present = {name: getattr(locked.spec, name) for name in VERSION_COLUMNS}
    wanted = {**present, **_of(given, VERSION_COLUMNS)}
    of_job = _of(given, JOB_COLUMNS)
    changed = any(getattr(locked.job, name) != value for name, value in of_job.items())
    if changed or wanted != present or anchor != locked.spec.anchor_at:
        _change_job(locked.job, of_job, locked.now)
        locked.spec = _write_version(locked.job, wanted, anchor)
    locked.keep_priority()
    after = locked.audit_snapshot()
    if dropped:
        after["dropped_overrides"] = dropped
    if before != after:
        record(Action.JOB_EDITED, locked.job, before=before, after=after)
    return locked.job


@transaction.atomic
def delete_job(job: Job, reason: str = "", *, seen: Collection[str] | None = None) -> None:
    """Delete a job softly: its runs stay readable, its name is free again."""
    locked = lock(job, seen)
    before = locked.audit_snapshot()
    locked.set_next(None)
    locked.job.deleted_at = locked.job.updated_at = locked.now
    locked.job.save(update_fields=["deleted_at", "updated_at"])
    job_hooks().job_ended(locked.job, locked.now, reason or "the job was deleted")
    record(Action.JOB_DELETED, locked.job, before=before, reason=reason)


def _of(given: Json, columns: Sequence[str]) -> Json:
    return {name: given[name] for name in columns if name in given}


def _change_schedule(locked: LockedJob, given: Json) -> tuple[datetime, list[Json]]:
    """Plan by a schedule that is new; return from when it counts, and the overrides that it drops."""
    schedule = given.get("schedule")
    new = schedule != locked.spec.schedule or locked.job.status == JobStatus.FINISHED
    if "schedule" not in given or not new:
        return locked.spec.anchor_at, []
    parsed = parse(schedule, str(locked.job.pk), working_time(given["calendar"]))
    dropped = drop_overrides(locked, parsed, locked.now)
    _rearm(locked, schedule, given["calendar"])
    return locked.now, dropped


def _rearm(locked: LockedJob, schedule: Json | None, calendar: Calendar | None) -> None:
    """Plan by the new schedule from now on; reactivate a job that had come to its end."""
    if schedule and "at" in schedule:
        once = parse(schedule, str(locked.job.pk), working_time(calendar))
        if (at := next_after(once, EPOCH, anchor=locked.now)) is not None:
            refuse_taken_instant(locked.job, at, "schedule.at")
    upcoming = first_time(schedule, str(locked.job.pk), locked.now, calendar)
    if locked.job.status in (JobStatus.FINISHED, JobStatus.UNRUNNABLE):
        if locked.job.status == JobStatus.UNRUNNABLE:
            skip_missed(locked)
        locked.set_status(JobStatus.ACTIVE)
    if locked.job.status == JobStatus.ACTIVE:
        locked.plan(upcoming)
    elif locked.job.status == JobStatus.PAUSED:
        skip_missed(locked)


def _write_version(job: Job, values: Json, anchor: datetime) -> JobVersion:
    of_job = {field.name: field.as_audited(getattr(job, field.column)) for field in UNVERSIONED}
    spec = JobVersion.objects.create(
        job=job,
        version=job.version,
        target_key=target_key(values["target"]),
        secret_names=names_in(values["target"]),
        job_fields=of_job,
        anchor_at=anchor,
        created_at=job.updated_at,
        created_by=current_actor().name,
        **values,
    )
    job_hooks().version_written(job, spec)
    return spec


def _change_job(job: Job, values: Json, now: datetime) -> None:
    for name, value in values.items():
        setattr(job, name, value)
    job.version += 1
    job.updated_at = now
    with _refusing_duplicate_name(job):
        job.save(update_fields=[*values, "version", "updated_at"])


@contextmanager
def _refusing_duplicate_name(job: Job) -> Iterator[None]:
    """Refuse a name that another job has, with a link to that job."""
    detail, hint = (
        f"there is a job named {abbreviate(job.name)} already",
        "choose another name, or change that job",
    )
    try:
        with refusing_duplicate_name("job_name_once_per_tenant", detail, hint):
            yield
    except DuplicateName as refusal:
        # It may be gone again by now.
        other = Job.objects.of(job.tenant).filter(name=job.name).first()
        refusal.link = f"/api/v1/jobs/{other.pk}" if other else ""
        raise
