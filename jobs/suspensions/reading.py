"""Read what a request says of a suspension."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from jobs.errors import FieldError, collecting, refuse_any
from jobs.models import Effect, Job, Pool, Suspension, SuspensionKind, Tenant
from jobs.spec.tags import read_tag
from jobs.validation import instants
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, listed, near, read_reason

EFFECTS: dict[SuspensionKind, tuple[Effect, ...]] = {
    SuspensionKind.PAUSE: (Effect.CATCH_UP, Effect.HOLD),
    SuspensionKind.BLACKOUT: (Effect.SKIP, Effect.HOLD, Effect.RUN_AFTER),
}
EFFECT_HINTS = {
    Effect.CATCH_UP: "when it is over, each job's catch-up policy decides about what it missed",
    Effect.HOLD: "runs are made and wait until it is over",
    Effect.SKIP: "the times get no run",
    Effect.RUN_AFTER: "each job that missed any runs once when it is over",
}
SCOPE = ("job", "tag", "pool", "everything")
FIELDS = (*SCOPE, "effect", "reason", "begins_at", "ends_at")
# A client that sends its own clock's "now" may be this far behind.
TOLERANCE = timedelta(minutes=1)


def read_request(
    kind: SuspensionKind, data: object, tenant: Tenant | None, now: datetime, present: Suspension | None
) -> Json:
    """Read the columns that a request names, and name all its mistakes."""
    given = expect_object(data, "", FIELDS)
    readers: dict[str, Callable[[Any], Json]] = {
        "job": lambda value: {"job": _read_job(value, tenant)},
        "tag": _read_tag,
        "pool": lambda value: {"pool": _read_pool(value, tenant)},
        "everything": lambda value: _read_everything(value, given),
        "effect": lambda value: {"effect": _read_effect(value, kind)},
        "reason": lambda value: {"reason": read_reason(value)},
        "begins_at": lambda value: {"begins_at": _read_beginning(value, now, present)},
        "ends_at": lambda value: {"ends_at": None if value is None else instants.read(value, "ends_at")},
    }
    values: Json = {}
    errors: list[FieldError] = []
    for name, read in readers.items():
        if name in given:
            with collecting(errors):
                values |= read(given[name])
    refuse_any(errors)
    return values


def _read_job(value: object, tenant: Tenant | None) -> Job | None:
    if value is None:
        return None
    if tenant is None:
        raise invalid("job", "a job is of one tenant", "name its tenant as well", "inconsistent")
    found = None
    with suppress(ValueError):
        found = Job.objects.of(tenant).filter(pk=UUID(str(value))).first()
    if found is None:
        raise invalid(
            "job", f"there is no job {abbreviate(value)}", "the id of one of your jobs", "unknown_job"
        )
    return found


def _read_tag(value: object) -> Json:
    if value is None:
        return {"tag_name": "", "tag_value": ""}
    name, content = read_tag(value)
    return {"tag_name": name, "tag_value": content}


def _read_pool(value: object, tenant: Tenant | None) -> Pool | None:
    if value is None:
        return None
    pools = Pool.objects.open_to(tenant) if tenant else Pool.objects.all()
    found = pools.filter(slug=value).first() if isinstance(value, str) else None
    if found is None:
        known = list(pools.values_list("slug", flat=True))
        hint = near(str(value), known) or listed(known, "there are")
        raise invalid("pool", f"there is no pool {abbreviate(value)}", hint, "unknown_pool")
    return found


def _read_everything(value: object, given: Json) -> Json:
    if not isinstance(value, bool):
        raise invalid("everything", f"{abbreviate(value)} is not a boolean", "true or false", "wrong_type")
    if not value:
        raise invalid("everything", "false says nothing", "true, or leave it out")
    named = [name for name in ("job", "tag", "pool") if given.get(name) is not None]
    if named:
        detail = f"everything and {named[0]} are both given"
        raise invalid("everything", detail, "one of them", "inconsistent")
    return {"job": None, "tag_name": "", "tag_value": "", "pool": None}


def _read_effect(value: object, kind: SuspensionKind) -> Effect:
    allowed = {effect.value: EFFECT_HINTS[effect] for effect in EFFECTS[kind]}
    if not isinstance(value, str) or value not in allowed:
        hint = "; ".join(f"{name}: {meaning}" for name, meaning in allowed.items())
        raise invalid("effect", f"{abbreviate(value)} is not what a {kind} can do", hint)
    return Effect(value)


def _read_beginning(value: object, now: datetime, present: Suspension | None) -> datetime:
    if value is None:
        return present.begins_at if present else now
    begins = instants.read(value, "begins_at")
    if present and begins == present.begins_at:
        return begins
    if begins < now - TOLERANCE:
        hint = f"it is now {instants.as_text(now)}; leave it out to begin now"
        raise invalid("begins_at", f"{instants.as_text(begins)} is in the past", hint, "past")
    return max(begins, now)
