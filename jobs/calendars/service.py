"""Create, edit and delete calendars, each in a transaction with its audit entry.

`reschedule` applies an edit to the clocks of the jobs that plan by the calendar.
"""

import re
from uuid import UUID

from django.db import transaction

from auditlog.actions import Action
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import FieldError, InUse, TooMany, collecting, refuse_any
from jobs.models import Calendar, Tenant
from jobs.schedules import calendar_as_json, read_calendar
from jobs.spec.calendar_lookup import stored
from jobs.validation.checks import Json, abbreviate, expect_object, expect_text, invalid
from jobs.validation.rows import first_or_missing, refusing_duplicate_name

FIELDS = ("name", "description", "timezone", "dates", "weekly")
WORKING_TIME = ("timezone", "dates", "weekly")
MAX_DESCRIPTION_LENGTH = 200
# Per tenant: every scheduler keeps the calendars of its jobs in memory.
MAX_CALENDARS = 100
# The id before every job's: no clock is set by the new edition yet.
NO_JOB = UUID(int=0)
SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


@transaction.atomic
def create_calendar(tenant: Tenant, data: object) -> Calendar:
    given = _read(data, None)
    if Calendar.objects.of(tenant).count() >= MAX_CALENDARS:
        detail, hint = f"{MAX_CALENDARS} calendars are there already", "delete one that no job uses"
        raise TooMany(detail, hint=hint, code="too_many_calendars")
    now = database_now()
    calendar = Calendar(tenant=tenant, created_at=now, updated_at=now, **given)
    detail = f"there is a calendar named {abbreviate(calendar.name)} already"
    hint = "choose another name, or change that calendar"
    with refusing_duplicate_name("calendar_name_once_per_tenant", detail, hint):
        calendar.save(force_insert=True)
    record(Action.CALENDAR_CREATED, calendar, after=audit_snapshot(calendar))
    return calendar


@transaction.atomic
def edit_calendar(calendar: Calendar, data: object) -> Calendar:
    """Change the fields that are given. The clocks of its jobs are set again soon after."""
    locked = _lock(calendar)
    given = _read(data, locked)
    before = audit_snapshot(locked)
    for name, value in given.items():
        setattr(locked, name, value)
    after = audit_snapshot(locked)
    if before == after:
        return locked
    changed = any(before[name] != after[name] for name in WORKING_TIME)
    if changed or locked.rearmed_to is None:
        # Jobs plan by the new edition from this instant on. While they are rescheduled, an edit of the description
        # alone must not move it.
        locked.updated_at = database_now()
    if changed:
        locked.edition += 1
        locked.rearmed_to = NO_JOB
    locked.save(update_fields=[*given, "updated_at", "edition", "rearmed_to"])
    record(Action.CALENDAR_EDITED, locked, before=before, after=after)
    return locked


@transaction.atomic
def delete_calendar(calendar: Calendar, reason: str = "") -> None:
    """Delete a calendar that no job plans by. The row stays for the earlier versions of jobs that refer to it."""
    locked = _lock(calendar)
    rest = f" and more: GET /api/v1/jobs?calendar={locked.name}"
    if names := locked.versions.in_use().order_by("job__name").job_names(rest):
        detail, hint = f"jobs plan by {locked.name}: {names}", "give them another schedule first"
        raise InUse(detail, hint=hint, code="calendar_in_use")
    locked.deleted_at = locked.updated_at = database_now()
    locked.rearmed_to = None
    locked.save(update_fields=["deleted_at", "updated_at", "rearmed_to"])
    record(Action.CALENDAR_DELETED, locked, before=audit_snapshot(locked), reason=reason)


def audit_snapshot(calendar: Calendar) -> Json:
    return {"name": calendar.name, "description": calendar.description, **stored(calendar)}


def _lock(calendar: Calendar) -> Calendar:
    """Lock a calendar, after jobs that are being saved with it (calendar_lookup.held_calendar): they are found then."""
    rows = Calendar.objects.select_for_update(no_key=True)
    return first_or_missing(rows.filter(pk=calendar.pk, deleted_at=None))


def _read(data: object, present: Calendar | None) -> Json:
    """Read all fields of a new calendar, or those that an edit gives, and name all mistakes."""
    given = expect_object(data, "", FIELDS)
    errors: list[FieldError] = []
    values: Json = {}
    with collecting(errors):
        if "name" in given or present is None:
            values["name"] = _read_name(given.get("name"), present)
    with collecting(errors):
        if "description" in given:
            text = given["description"]
            values["description"] = expect_text(text, "description", "a description", MAX_DESCRIPTION_LENGTH)
    with collecting(errors):
        values |= _read_working_time(given, present)
    refuse_any(errors)
    return values


def _read_working_time(given: Json, present: Calendar | None) -> Json:
    """Read working time in its stored form, which is the same for equal calendars however they were written."""
    whole = {**(stored(present) if present else {}), **{n: given[n] for n in WORKING_TIME if n in given}}
    read = calendar_as_json(read_calendar(whole))
    return {name: read[name] for name in WORKING_TIME if present is None or name in given}


def _read_name(value: object, present: Calendar | None) -> str:
    if value is None and present is None:
        raise invalid("name", "name is required", "such as us-holidays", "required")
    if present is not None:
        if value != present.name:
            hint = "jobs name it in their schedules"
            raise invalid("name", "the name cannot be changed", hint, "read_only")
        return present.name
    if not isinstance(value, str) or not SLUG.fullmatch(value):
        hint = "small letters, digits and inner hyphens, at most 40"
        raise invalid("name", f"{abbreviate(value)} is not a name", hint)
    return value
