"""Skip or move single planned times. Each override locks the job's clock, as every edit does."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs.errors import Conflict, FieldError, JobNotRunnable, TooMany, collecting, refuse_any
from jobs.models import Job, JobStatus, Override
from jobs.schedules import Schedule, last_before, next_after
from jobs.services.locking import LockedJob, lock
from jobs.services.occurrences import is_planned, refuse_taken_instant
from jobs.validation import instants
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, read_reason
from jobs.validation.instants import as_text
from jobs.validation.rows import first_or_missing

FIELDS = ("planned_at", "skip", "move_to", "reason")
MAX_OPEN = 100
CHANGEABLE = (JobStatus.ACTIVE, JobStatus.PAUSED)


class OverrideDone(Conflict, code="override_is_done"):
    """The planned time has come: its run exists, or a run row says why there is none."""


@transaction.atomic
def set_override(job: Job, data: object) -> tuple[Override, bool]:
    """Skip or move one planned time, changing an earlier override of it; return the override and if it is new."""
    given = _read(data)
    locked = lock(job)
    if locked.job.status not in CHANGEABLE:
        detail = f"the job is {locked.job.status} and has no planned times"
        raise JobNotRunnable(detail, field="status", hint="resume it first")
    planned_at, moved_to = given["planned_at"], given.get("moved_to")
    _check_planned(locked, planned_at, moved_to)
    if moved_to is not None:
        _check_move(locked, planned_at, moved_to)
    override = locked.job.overrides.select_for_update().filter(planned_at=planned_at).first()
    before = override_snapshot(override) if override else None
    if override is None:
        if open_overrides(locked.job).count() >= MAX_OPEN:
            detail = f"the job has {MAX_OPEN} overrides already"
            raise TooMany(detail, hint="change its schedule", code="too_many_overrides")
        override = Override(job=locked.job, planned_at=planned_at, created_at=locked.now)
    override.moved_to, override.reason = moved_to, given["reason"]
    after = override_snapshot(override)
    if before != after:
        override.created_by = current_actor().name[:200]
        override.save()
        _plan(locked)
        action = Action.OVERRIDE_SKIPPED if moved_to is None else Action.OVERRIDE_MOVED
        record(action, locked.job, before=before, after=after, reason=override.reason)
    return override, before is None


@transaction.atomic
def remove_override(job: Job, override_id: int, reason: str = "") -> None:
    """Delete an override: the planned time is again as the schedule has it."""
    locked = lock(job)
    mine = locked.job.overrides.filter(pk=override_id)
    override = first_or_missing(mine, f"the job has no override {override_id}")
    if override.done_at is not None or override.planned_at <= locked.now:
        detail = f"{as_text(override.planned_at)} has come, and what was asked of it is done or under way"
        raise OverrideDone(detail, hint="its run can be cancelled or retried")
    before = override_snapshot(override)
    override.delete()
    _plan(locked)
    record(Action.OVERRIDE_DELETED, locked.job, before=before, reason=reason)


def put(job: Job, reason: str, *, what: str, planned_at: datetime, move_to: datetime | None) -> None:
    """Carry out what a form requests: `skip`, `move` or `restore`."""
    if what == "restore":
        override = open_overrides(job).filter(planned_at=planned_at).first()
        if override is not None:
            remove_override(job, override.pk, reason)
        return
    how = {"move_to": as_text(move_to)} if what == "move" and move_to else {"skip": True}
    set_override(job, {"planned_at": as_text(planned_at), "reason": reason, **how})


def open_overrides(job: Job) -> QuerySet[Override]:
    return job.overrides.filter(done_at=None).order_by("planned_at")


def drop_overrides(locked: LockedJob, schedule: Schedule, anchor: datetime) -> list[Json]:
    """Delete overrides of times that the new schedule does not plan; one whose planned time has come stays."""
    ahead = locked.job.overrides.filter(done_at=None, planned_at__gt=locked.now).order_by("planned_at")
    lost = [override for override in ahead if not is_planned(schedule, override.planned_at, anchor)]
    locked.job.overrides.filter(pk__in=[override.pk for override in lost]).delete()
    return [override_snapshot(override) for override in lost]


def override_snapshot(override: Override) -> Json:
    return {
        "planned_at": as_text(override.planned_at),
        "moved_to": as_text(override.moved_to) if override.moved_to else None,
        "reason": override.reason,
    }


def _plan(locked: LockedJob) -> None:
    if locked.job.status == JobStatus.ACTIVE:
        locked.plan(next_after(locked.schedule(), locked.now, anchor=locked.spec.anchor_at))


def _check_planned(locked: LockedJob, at: datetime, moved_to: datetime | None) -> None:
    refuse_taken_instant(locked.job, at, "planned_at")
    if at <= locked.now:
        if moved_to is None or not open_overrides(locked.job).filter(planned_at=at).exists():
            hint = f"it is now {as_text(locked.now)}"
            raise invalid("planned_at", f"{as_text(at)} is in the past", hint, "past")
        return
    schedule, anchor = locked.schedule(), locked.spec.anchor_at
    if not is_planned(schedule, at, anchor):
        before = last_before(schedule, at, anchor=anchor, not_before=locked.now)
        near = (before, next_after(schedule, at, anchor=anchor))
        found = " and ".join(as_text(one) for one in near if one is not None and one > locked.now)
        hint = f"the nearest are {found}" if found else "the job has no planned times ahead"
        raise invalid("planned_at", f"{as_text(at)} is no planned time of the job", hint, "not_planned")


def _check_move(locked: LockedJob, planned_at: datetime, moved_to: datetime) -> None:
    """Refuse an instant for which the partition of the planned time would not exist when the run is created."""
    if moved_to <= locked.now:
        hint = f"it is now {as_text(locked.now)}"
        raise invalid("move_to", f"{as_text(moved_to)} is in the past", hint, "past")
    if moved_to == planned_at:
        raise invalid("move_to", "that is the planned time itself", "another instant", "inconsistent")
    earliest = planned_at - timedelta(days=settings.PARTITIONS_AHEAD_DAYS - 2)
    latest = planned_at + timedelta(days=settings.HOT_PERIOD_DAYS - 3)
    if not earliest <= moved_to <= latest:
        reach = f"{as_text(max(earliest, locked.now))} to {as_text(latest)}"
        hint = f"from {reach}; beyond that, skip it and run the job then"
        detail = f"{as_text(moved_to)} is too far from the planned time"
        raise invalid("move_to", detail, hint, "too_far")


def _read(data: object) -> Json:
    given = expect_object(data, "", FIELDS)
    errors: list[FieldError] = []
    values: Json = {}
    with collecting(errors):
        if "planned_at" not in given:
            raise invalid("planned_at", "planned_at is required", "which of the planned times", "required")
        values["planned_at"] = instants.read(given["planned_at"], "planned_at")
    with collecting(errors):
        if ("skip" in given) == ("move_to" in given):
            detail = "skip and move_to: one of them is required"
            hint = '"skip": true, or "move_to": an instant'
            raise invalid("skip", detail, hint, "inconsistent")
        if "move_to" in given:
            values["moved_to"] = instants.read(given["move_to"], "move_to")
        elif given["skip"] is not True:
            raise invalid("skip", f"{abbreviate(given['skip'])} says nothing", "true, or move_to instead")
    with collecting(errors):
        values["reason"] = read_reason(given.get("reason", ""))
    refuse_any(errors)
    return values
