"""Create, edit, lift and delete suspensions, each in a transaction with its audit entry.

The schedulers read the row (runs/scheduler/trigger/suspensions.py). Nothing is written when a suspension begins, nor
for each of its jobs.
"""

from datetime import datetime

from django.db import connection, transaction

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import Conflict, TooMany
from jobs.models import Effect, Suspension, SuspensionKind, SuspensionState, Tenant
from jobs.suspensions.reading import EFFECTS, FIELDS, read_request
from jobs.suspensions.rules import SUSPENSION_LOCK
from jobs.validation import instants
from jobs.validation.checks import Json, expect_object, invalid
from jobs.validation.rows import first_or_missing

CHANGEABLE_ONCE_BEGUN = ("ends_at", "reason")
# Per tenant, with those that are planned or not settled yet: every pass of the schedulers reads them all.
MAX_SUSPENSIONS = 100


class SuspensionIsOver(Conflict, code="suspension_is_over"):
    """A suspension that is over cannot be changed."""


class SuspensionHasBegun(Conflict, code="suspension_has_begun"):
    """Only the end and the reason of a suspension that has begun can be changed."""


@transaction.atomic
def create_suspension(kind: SuspensionKind, data: object, *, tenant: Tenant | None) -> Suspension:
    """Suspend jobs of the tenant, or of every tenant if none is given. Suspensions may overlap."""
    now = database_now()
    given = {"begins_at": now, **read_request(kind, data, tenant, now, None)}
    actor = current_actor().name[:200]
    suspension = Suspension(kind=kind, tenant=tenant, created_by=actor, created_at=now, **given)
    if "everything" not in expect_object(data, ""):
        _refuse_naming_nothing(suspension)
    usual = Effect.HOLD if _is_of_a_pool(suspension) else EFFECTS[kind][0]
    suspension.effect = given.get("effect") or usual
    _check(suspension, now)
    _refuse_too_many(tenant)
    suspension.save(force_insert=True)
    record(Action.SUSPENSION_CREATED, suspension, after=audit_snapshot(suspension), reason=suspension.reason)
    return suspension


@transaction.atomic
def edit_suspension(suspension: Suspension, data: object) -> Suspension:
    """Change any field before the suspension begins, and its end and reason from then on."""
    locked, now = _lock(suspension)
    state = locked.state(now)
    if state == SuspensionState.OVER:
        raise SuspensionIsOver(f"the {locked.kind} is over and cannot be changed", hint="make a new one")
    before = audit_snapshot(locked)
    given = read_request(SuspensionKind(locked.kind), data, locked.tenant, now, locked)
    for name, value in given.items():
        setattr(locked, name, value)
    if given.keys() & {"job", "tag_name", "pool"} and "everything" not in expect_object(data, ""):
        _refuse_naming_nothing(locked)
    after = audit_snapshot(locked)
    changed = [name for name in FIELDS if before.get(name) != after.get(name)]
    if not changed:
        return locked
    if state == SuspensionState.IN_FORCE:
        fixed = [name for name in changed if name not in CHANGEABLE_ONCE_BEGUN]
        if fixed:
            detail = f"the {locked.kind} has begun: {' and '.join(fixed)} cannot be changed any more"
            raise SuspensionHasBegun(detail, field=fixed[0], hint="lift it and make another one")
    _check(locked, now)
    locked.save(update_fields=list(given))
    record(Action.SUSPENSION_EDITED, locked, before=before, after=after)
    return locked


@transaction.atomic
def lift_suspension(suspension: Suspension, reason: str = "") -> Suspension:
    """End a suspension now, unless it is over."""
    locked, now = _lock(suspension)
    if locked.state(now) == SuspensionState.OVER:
        return locked
    before = audit_snapshot(locked)
    locked.lifted_at, locked.lifted_by = now, current_actor().name[:200]
    locked.save(update_fields=["lifted_at", "lifted_by"])
    record(Action.SUSPENSION_LIFTED, locked, before=before, after=audit_snapshot(locked), reason=reason)
    return locked


@transaction.atomic
def delete_suspension(suspension: Suspension, reason: str = "") -> None:
    """Delete a suspension that has not begun, and so has held nothing back."""
    locked, now = _lock(suspension)
    if locked.state(now) != SuspensionState.PLANNED:
        detail = f"the {locked.kind} has begun and cannot be deleted"
        raise SuspensionHasBegun(detail, hint=f"POST /api/v1/{locked.kind}s/{locked.public_id}/lift ends it")
    record(Action.SUSPENSION_DELETED, locked, before=audit_snapshot(locked), reason=reason)
    locked.delete()


def _lock(suspension: Suspension) -> tuple[Suspension, datetime]:
    """Lock the row, then read the clock: it was over before, or ends when this transaction says."""
    # Trigger decisions share-lock the row one after the other, so an update alone could starve. They take the advisory
    # lock too, in shared mode, which lets this transaction in before those that come later.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [SUSPENSION_LOCK, suspension.pk])
    locked = first_or_missing(Suspension.objects.select_for_update(no_key=True).filter(pk=suspension.pk))
    return locked, database_now()


def audit_snapshot(suspension: Suspension) -> Json:
    return {
        "kind": suspension.kind,
        "tenant": suspension.tenant.slug if suspension.tenant else None,
        "job": str(suspension.job_id) if suspension.job_id else None,
        "tag": suspension.tag,
        "pool": suspension.pool.slug if suspension.pool else None,
        "effect": suspension.effect,
        "reason": suspension.reason,
        "begins_at": instants.as_text(suspension.begins_at),
        "ends_at": instants.as_text(suspension.ends_at) if suspension.ends_at else None,
        "lifted_at": instants.as_text(suspension.lifted_at) if suspension.lifted_at else None,
    }


def _is_of_a_pool(suspension: Suspension) -> bool:
    """Say whether a pause is of a whole pool, for the jobs of all tenants. Their runs wait then, and none is missed."""
    is_other = suspension.pool is None or suspension.tenant or suspension.tag_name
    return suspension.kind == SuspensionKind.PAUSE and not is_other


def _check(suspension: Suspension, now: datetime) -> None:
    """Refuse what is wrong only in several fields together."""
    if _is_of_a_pool(suspension) and suspension.effect != Effect.HOLD:
        hint = "hold, or leave it out"
        raise invalid("effect", "the runs of a paused pool are held", hint, "inconsistent")
    if suspension.ends_at is None:
        if suspension.kind == SuspensionKind.BLACKOUT:
            raise invalid("ends_at", "ends_at is required", "a blackout ends by itself", "required")
        return
    ends, begins = instants.as_text(suspension.ends_at), instants.as_text(suspension.begins_at)
    if suspension.ends_at <= now:
        raise invalid("ends_at", f"{ends} is in the past", f"it is now {instants.as_text(now)}", "past")
    if suspension.ends_at <= suspension.begins_at:
        detail = f"{ends} is not after the beginning, {begins}"
        raise invalid("ends_at", detail, "an instant after begins_at", "inconsistent")


def _refuse_too_many(tenant: Tenant | None) -> None:
    """Refuse one more than a tenant may have. Requests at the same moment may exceed this a little."""
    unsettled = Suspension.objects.filter(tenant=tenant, settled_at=None)
    if tenant is not None and unsettled.count() >= MAX_SUSPENSIONS:
        detail = f"{MAX_SUSPENSIONS} pauses and blackouts are planned or in force already"
        hint = "lift one, or make one of a tag or a pool that takes the place of several"
        raise TooMany(detail, hint=hint, code="too_many_suspensions")


def _refuse_naming_nothing(suspension: Suspension) -> None:
    """Refuse a request without a scope: an empty one must not suspend everything."""
    if not suspension.names_jobs:
        whose = "all of your jobs" if suspension.tenant else "all jobs of everybody"
        hint = f'a job, a tag, a pool, or "everything": true for {whose}'
        raise invalid("tag", f"nothing says what the {suspension.kind} concerns", hint, "inconsistent")
