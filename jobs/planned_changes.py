"""Single planned times that somebody skips or moves. Each change holds the job's clock, as every edit does."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs import instants
from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown
from jobs.instants import as_text
from jobs.locked_job import LockedJob, lock
from jobs.models import Job, JobStatus, PlannedChange
from jobs.planned_times import is_planned, nearest, refuse_taken_instant
from jobs.refusals import Conflict, FieldError, InvalidInput, JobNotRunnable, Missing
from jobs.schedules import Schedule
from jobs.stops import read_note

FIELDS = ("planned_at", "skip", "move_to", "note")
MOST_OPEN = 100
CHANGEABLE = (JobStatus.ACTIVE, JobStatus.PAUSED)


class ChangeIsDone(Conflict):
    """The planned time has come: its run exists, or it was told why there is none."""

    code = "change_is_done"


class TooManyChanges(Conflict):
    """A job has so many changes of single times: its schedule should be another."""

    code = "too_many_changes"


@transaction.atomic
def change_time(job: Job, data: object) -> PlannedChange:
    """Skips or moves one planned time; done again, the last word counts."""
    given = _read(data)
    locked = lock(job)
    _require_times(locked)
    planned_at, moved_to = given["planned_at"], given.get("moved_to")
    _check_planned(locked, planned_at, moved_to)
    if moved_to is not None:
        _check_move(locked, planned_at, moved_to)
    change = locked.job.planned_changes.select_for_update().filter(planned_at=planned_at).first()
    before = change_facts(change) if change else None
    if change is None:
        if open_changes(locked.job).count() >= MOST_OPEN:
            raise TooManyChanges(
                f"{MOST_OPEN} planned times of the job are changed already", hint="change its schedule"
            )
        change = PlannedChange(job=locked.job, planned_at=planned_at, created_at=locked.now)
    change.moved_to, change.note = moved_to, given.get("note", "")
    after = change_facts(change)
    if before != after:
        change.made_by = current_actor().name[:200]
        change.save()
        _plan(locked)
        action = Action.TIME_SKIPPED if moved_to is None else Action.TIME_MOVED
        tenant_id = locked.job.tenant_id
        record(action, locked.job, tenant_id=tenant_id, before=before, after=after, reason=change.note)
    return change


@transaction.atomic
def restore_time(job: Job, change_id: int, reason: str = "") -> None:
    """The planned time stands again as the schedule has it."""
    locked = lock(job)
    change = locked.job.planned_changes.filter(pk=change_id).first()
    if change is None:
        raise Missing(f"the job has no changed time {change_id}")
    if change.done_at is not None or change.planned_at <= locked.now:
        raise ChangeIsDone(
            f"{as_text(change.planned_at)} has come, and what was asked of it is done or under way",
            hint="its run can be cancelled or retried",
        )
    before = change_facts(change)
    change.delete()
    _plan(locked)
    record(Action.TIME_RESTORED, locked.job, tenant_id=locked.job.tenant_id, before=before, reason=reason)


def put(job: Job, reason: str, *, what: str, planned_at: datetime, move_to: datetime | None) -> None:
    """As a form asks for it: `skip`, `move` or `restore`."""
    if what == "restore":
        change = open_changes(job).filter(planned_at=planned_at).first()
        if change is not None:
            restore_time(job, change.pk, reason)
        return
    how = {"move_to": as_text(move_to)} if what == "move" and move_to else {"skip": True}
    change_time(job, {"planned_at": as_text(planned_at), "note": reason, **how})


def open_changes(job: Job) -> QuerySet[PlannedChange]:
    return job.planned_changes.filter(done_at=None).order_by("planned_at")


def drop_changes(locked: LockedJob, schedule: Schedule, anchor: datetime) -> list[Json]:
    """Of single times that are none any more. One that was moved and whose time has come keeps its new instant."""
    ahead = locked.job.planned_changes.filter(done_at=None, planned_at__gt=locked.now).order_by("planned_at")
    lost = [change for change in ahead if not is_planned(schedule, change.planned_at, anchor)]
    locked.job.planned_changes.filter(pk__in=[change.pk for change in lost]).delete()
    return [change_facts(change) for change in lost]


def change_facts(change: PlannedChange) -> Json:
    """A changed time as an audit entry shows it."""
    return {
        "planned_at": as_text(change.planned_at),
        "moved_to": as_text(change.moved_to) if change.moved_to else None,
        "note": change.note,
    }


def _plan(locked: LockedJob) -> None:
    if locked.job.status == JobStatus.ACTIVE:
        locked.plan(locked.next_regular())


def _require_times(locked: LockedJob) -> None:
    if locked.job.status not in CHANGEABLE:
        raise JobNotRunnable(
            f"the job is {locked.job.status} and has no planned times", field="status", hint="resume it first"
        )


def _check_planned(locked: LockedJob, at: datetime, moved_to: datetime | None) -> None:
    refuse_taken_instant(locked.job, at, "planned_at")
    if at <= locked.now:
        if moved_to is None or not open_changes(locked.job).filter(planned_at=at).exists():
            hint = f"it is now {as_text(locked.now)}"
            raise refused("planned_at", f"{as_text(at)} is in the past", hint, "past")
    elif not is_planned(locked.schedule(), at, locked.spec.anchor_at):
        near = nearest(locked.schedule(), at, locked.spec.anchor_at)
        found = " and ".join(as_text(one) for one in near if one > locked.now)
        hint = f"the nearest are {found}" if found else "the job has no planned times ahead"
        raise refused("planned_at", f"{as_text(at)} is no planned time of the job", hint, "not_planned")


def _check_move(locked: LockedJob, planned_at: datetime, moved_to: datetime) -> None:
    """A run lies in the partition of its planned time, which must exist when it is made."""
    if moved_to <= locked.now:
        raise refused(
            "move_to", f"{as_text(moved_to)} is in the past", f"it is now {as_text(locked.now)}", "past"
        )
    if moved_to == planned_at:
        raise refused("move_to", "that is the planned time itself", "another instant")
    earliest = planned_at - timedelta(days=settings.PARTITIONS_AHEAD_DAYS - 2)
    latest = planned_at + timedelta(days=settings.HOT_PERIOD_DAYS - 3)
    if not earliest <= moved_to <= latest:
        reach = f"{as_text(max(earliest, locked.now))} to {as_text(latest)}"
        hint = f"from {reach}; beyond that, skip it and run the job then"
        raise refused(
            "move_to", f"{as_text(moved_to)} is too far from the planned time", hint, "out_of_range"
        )


def _read(data: object) -> Json:
    given = expect_object(data, "")
    refuse_unknown(given, FIELDS, "")
    errors: list[FieldError] = []
    values: Json = {}

    def read(name: str, reader: Any) -> None:
        try:
            values[name] = reader()
        except InvalidInput as invalid:
            errors.extend(invalid.errors)

    if "planned_at" not in given:
        errors.append(
            FieldError("planned_at", "planned_at is required", "which of the planned times", "required")
        )
    else:
        read("planned_at", lambda: instants.read(given["planned_at"], "planned_at"))
    if ("skip" in given) == ("move_to" in given):
        errors.append(
            FieldError(
                "skip",
                "skip and move_to: one of them is required",
                '"skip": true, or "move_to": an instant',
                "required",
            )
        )
    elif "move_to" in given:
        read("moved_to", lambda: instants.read(given["move_to"], "move_to"))
    elif given["skip"] is not True:
        errors.append(FieldError("skip", f"{shown(given['skip'])} says nothing", "true, or move_to instead"))
    if "note" in given:
        read("note", lambda: read_note(given["note"]))
    if errors:
        raise InvalidInput(errors)
    return values
