"""Calendars: every change of one is a transaction with its audit entry. `rearming` brings it to the jobs' clocks."""

import re
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.record import record
from jobs.database_clock import database_now
from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown
from jobs.models import Calendar, JobVersion, Tenant
from jobs.refusals import Conflict, DuplicateName, FieldError, InvalidInput, Missing
from jobs.schedules import BadCalendar, calendar_as_json, read_calendar
from jobs.used_by import job_names, of_living_jobs
from jobs.working_times import stored

FIELDS = ("name", "description", "timezone", "dates", "weekly")
WORKING_TIME = ("timezone", "dates", "weekly")
LONGEST_DESCRIPTION = 200
# Of a tenant: every scheduler keeps those in memory that jobs plan by.
MOST_CALENDARS = 100
# Before every job's id: none of them has its clock by the new edition yet.
NO_JOB = UUID(int=0)
SLUG = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class CalendarInUse(Conflict):
    """Jobs plan by this calendar."""

    code = "calendar_in_use"


class TooManyCalendars(Conflict):
    """A tenant has so many calendars that jobs should share some."""

    code = "too_many_calendars"


@transaction.atomic
def create_calendar(tenant: Tenant, data: object) -> Calendar:
    given = _read(data, None)
    if Calendar.objects.of(tenant).count() >= MOST_CALENDARS:
        raise TooManyCalendars(
            f"{MOST_CALENDARS} calendars are there already", hint="delete one that no job uses"
        )
    now = database_now()
    calendar = Calendar(tenant=tenant, created_at=now, updated_at=now, **given)
    try:
        with transaction.atomic():
            calendar.save(force_insert=True)
    except IntegrityError as error:
        if "calendar_name_once_per_tenant" not in str(error):
            raise
        hint = "choose another name, or change that calendar"
        raise DuplicateName(
            f"there is a calendar named {calendar.name!r} already", field="name", hint=hint
        ) from None
    record(Action.CALENDAR_CREATED, calendar, tenant_id=tenant.pk, after=facts(calendar))
    return calendar


@transaction.atomic
def edit_calendar(calendar: Calendar, data: object) -> Calendar:
    """Changes the fields that are given. Its jobs get their clocks anew, soon after."""
    locked = _lock(calendar)
    given = _read(data, locked)
    before = facts(locked)
    for name, value in given.items():
        setattr(locked, name, value)
    after = facts(locked)
    if before == after:
        return locked
    changed = any(before[name] != after[name] for name in WORKING_TIME)
    if changed or locked.rearmed_to is None:
        # Its jobs plan by the new edition from then on, so a word about it does not put that off.
        locked.updated_at = database_now()
    if changed:
        locked.edition += 1
        locked.rearmed_to = NO_JOB
    locked.save(update_fields=[*given, "updated_at", "edition", "rearmed_to"])
    record(Action.CALENDAR_EDITED, locked, tenant_id=locked.tenant_id, before=before, after=after)
    return locked


@transaction.atomic
def delete_calendar(calendar: Calendar, reason: str = "") -> None:
    """Only while no job plans by it. Soft: earlier versions of jobs still say what they planned by."""
    locked = _lock(calendar)
    rest = f" and more: GET /api/v1/jobs?calendar={locked.name}"
    if names := job_names(users(locked).order_by("job__name"), rest):
        raise CalendarInUse(f"jobs plan by {locked.name}: {names}", hint="give them another schedule first")
    locked.deleted_at = locked.updated_at = database_now()
    locked.rearmed_to = None
    locked.save(update_fields=["deleted_at", "updated_at", "rearmed_to"])
    record(Action.CALENDAR_DELETED, locked, tenant_id=locked.tenant_id, before=facts(locked), reason=reason)


def users(calendar: Calendar) -> QuerySet[JobVersion]:
    """The present versions of the jobs that plan by it."""
    return of_living_jobs(calendar.versions.all())


def facts(calendar: Calendar) -> Json:
    return {"name": calendar.name, "description": calendar.description, **stored(calendar)}


def _lock(calendar: Calendar) -> Calendar:
    """Waits for jobs that are just being planned by it (working_times.held_calendar), so that an edit finds them."""
    locked = Calendar.objects.select_for_update(no_key=True).filter(pk=calendar.pk, deleted_at=None).first()
    if locked is None:
        raise Missing
    return locked


def _read(data: object, present: Calendar | None) -> Json:
    """Of a new calendar all fields, else those that are given; all mistakes at once."""
    given = expect_object(data, "")
    refuse_unknown(given, FIELDS, "")
    errors: list[FieldError] = []
    values: Json = {}
    for name, read in (("name", _read_name), ("description", _read_description)):
        try:
            if name in given or (name == "name" and present is None):
                values[name] = read(given.get(name), present)
        except InvalidInput as invalid:
            errors += invalid.errors
    values |= _read_working_time(given, present, errors)
    if errors:
        raise InvalidInput(errors)
    return values


def _read_working_time(given: Json, present: Calendar | None, errors: list[FieldError]) -> Json:
    """As it is stored: whatever the order and the form of what was given, equal calendars are equal."""
    whole = {**(stored(present) if present else {}), **{n: given[n] for n in WORKING_TIME if n in given}}
    try:
        read: Any = calendar_as_json(read_calendar(whole))
    except BadCalendar as bad:
        errors += [FieldError(m.field, m.detail, m.hint) for m in bad.mistakes]
        return {}
    return {name: read[name] for name in WORKING_TIME if present is None or name in given}


def _read_name(value: object, present: Calendar | None) -> str:
    if value is None and present is None:
        raise refused("name", "name is required", "such as us-holidays", "required")
    if present is not None:
        if value != present.name:
            raise refused(
                "name", "the name cannot be changed", "jobs name it in their schedules", "read_only"
            )
        return present.name
    if not isinstance(value, str) or not SLUG.fullmatch(value):
        raise refused(
            "name", f"{shown(value)} is not a name", "small letters, digits and inner hyphens, at most 40"
        )
    return value


def _read_description(value: object, present: Calendar | None) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_DESCRIPTION:
        hint = f"a string of at most {LONGEST_DESCRIPTION} characters"
        raise refused("description", f"{shown(value)} is not a description", hint)
    return value
