"""A tenant's calendars as schedules use them."""

import json
from collections.abc import Iterable
from functools import lru_cache

from jobs.models import Calendar, Tenant
from jobs.schedules import WorkingTime, read_calendar
from jobs.validation.checks import Json, abbreviate, invalid, listed, near


def held_calendar(tenant: Tenant, name: str) -> Calendar:
    """Lock a calendar by its name, as it is until the transaction ends.

    Its edits wait, and then find the job that is being planned by it: an edit that had passed by unseen would leave
    that job's clock where the calendar of before has put it. It comes after JobClock in the order of locks.
    """
    found = Calendar.objects.raw(
        "SELECT * FROM beatkeeper_calendar WHERE tenant_id = %s AND name = %s AND deleted_at IS NULL FOR SHARE",
        [tenant.pk, name],
    )
    return _one(found, tenant, name)


def found_calendar(tenant: Tenant, name: str) -> Calendar:
    """Return a calendar as it is now, without a lock."""
    return _one(Calendar.objects.of(tenant).filter(name=name), tenant, name)


def _one(found: Iterable[Calendar], tenant: Tenant, name: str) -> Calendar:
    if (calendar := next(iter(found), None)) is not None:
        return calendar
    names = list(Calendar.objects.of(tenant).values_list("name", flat=True))
    hint = near(name, names) or listed(names, "there are") or "none is there yet: POST /api/v1/calendars"
    detail = f"there is no calendar {abbreviate(name)}"
    raise invalid("schedule.calendar.name", detail, hint, "unknown_calendar")


def working_time(calendar: Calendar | None) -> WorkingTime | None:
    return None if calendar is None else _read(json.dumps(stored(calendar), sort_keys=True))


def stored(calendar: Calendar) -> Json:
    return {"timezone": calendar.timezone, "dates": calendar.dates, "weekly": calendar.weekly}


@lru_cache(maxsize=256)
def _read(text: str) -> WorkingTime:
    return read_calendar(json.loads(text)).without_names()
