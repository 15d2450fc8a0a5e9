"""Pauses and blackouts: every change of one is a transaction with its audit entry.

What runs see of a stop is its row alone (runs/stops.py): nothing else is written when it begins, or for each job.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, transaction
from django.db.models import Q, QuerySet

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs import instants
from jobs.database_clock import database_now
from jobs.input_checks import Json, expect_object, listed, near, refuse_unknown, refused, shown
from jobs.models import Effect, Job, Pool, Stop, StopKind, Tenant
from jobs.refusals import Conflict, FieldError, InvalidInput, Missing
from jobs.specs import LONGEST_TAG_NAME, LONGEST_TAG_VALUE
from jobs.stop_rules import STOP_QUEUE, StopRow, Stops

EFFECTS: dict[StopKind, tuple[Effect, ...]] = {
    StopKind.PAUSE: (Effect.CATCH_UP, Effect.HOLD),
    StopKind.BLACKOUT: (Effect.SKIP, Effect.HOLD, Effect.RUN_AFTER),
}
EFFECT_HINTS = {
    Effect.CATCH_UP: "when it is over, each job's catch-up policy decides about what it missed",
    Effect.HOLD: "runs are made and wait until it is over",
    Effect.SKIP: "the times get no run",
    Effect.RUN_AFTER: "each job that missed any runs once when it is over",
}
SCOPE = ("tag", "pool", "everything")
FIELDS = (*SCOPE, "effect", "note", "begins_at", "ends_at")
CHANGEABLE_ONCE_BEGUN = ("ends_at", "note")
PLANNED, IN_FORCE, OVER = STATES = ("planned", "in_force", "over")
# Whoever sends its own "now" may be this far behind.
TOLERANCE = timedelta(minutes=1)
LONGEST_NOTE = 500
# Of a tenant, planned ones and those that are not settled yet included: every pass of the schedulers reads them all.
MOST_STOPS = 100


class StopIsOver(Conflict):
    """A stop that is over cannot be changed."""

    code = "stop_is_over"


class StopHasBegun(Conflict):
    """Of a stop that has begun only the end and the note can be changed."""

    code = "stop_has_begun"


class TooManyStops(Conflict):
    """A tenant has so many pauses and blackouts that one of a wider tag or pool should take their place."""

    code = "too_many_stops"


@transaction.atomic
def create_stop(kind: StopKind, data: object, *, tenant: Tenant | None) -> Stop:
    """Of a tenant's own jobs; without a tenant, of everybody's that fit. Several may overlap."""
    now = database_now()
    given = _read(kind, data, tenant, now, None)
    actor = current_actor().name[:200]
    stop = Stop(kind=kind, tenant=tenant, begins_at=now, created_by=actor, created_at=now)
    _set(stop, given)
    if "everything" not in expect_object(data, ""):
        _refuse_naming_nothing(stop)
    stop.effect = given.get("effect") or (Effect.HOLD if _is_of_a_pool(stop) else EFFECTS[kind][0])
    _check(stop, now)
    _refuse_too_many(tenant)
    stop.save(force_insert=True)
    record(Action.STOP_CREATED, stop, tenant_id=stop.tenant_id, after=facts(stop), reason=stop.note)
    return stop


@transaction.atomic
def edit_stop(stop: Stop, data: object) -> Stop:
    """Everything before it begins; from then on its end and its note."""
    locked, now = _lock(stop)
    state = state_of(locked, now)
    if state == OVER:
        raise StopIsOver(f"the {locked.kind} is over and cannot be changed", hint="make a new one")
    before = facts(locked)
    given = _read(StopKind(locked.kind), data, locked.tenant, now, locked)
    _set(locked, given)
    if given.keys() & {"tag_name", "pool"} and "everything" not in expect_object(data, ""):
        _refuse_naming_nothing(locked)
    after = facts(locked)
    changed = [name for name in FIELDS if before.get(name) != after.get(name)]
    if not changed:
        return locked
    if state == IN_FORCE:
        _refuse_change_of_begun(locked, changed)
    _check(locked, now)
    locked.save(update_fields=list(given))
    record(Action.STOP_EDITED, locked, tenant_id=locked.tenant_id, before=before, after=after)
    return locked


@transaction.atomic
def lift_stop(stop: Stop, reason: str = "") -> Stop:
    """It is over from now on. One that is over already stays as it is."""
    locked, now = _lock(stop)
    if _is_of_a_pool(locked):
        _free_earlier_workers(locked)
    if state_of(locked, now) == OVER:
        return locked
    before = facts(locked)
    locked.lifted_at, locked.lifted_by = now, current_actor().name[:200]
    locked.save(update_fields=["lifted_at", "lifted_by"])
    record(
        Action.STOP_LIFTED,
        locked,
        tenant_id=locked.tenant_id,
        before=before,
        after=facts(locked),
        reason=reason,
    )
    return locked


@transaction.atomic
def delete_stop(stop: Stop, reason: str = "") -> None:
    """As if it had never been asked for; so only while it has stopped nothing."""
    locked, now = _lock(stop)
    if state_of(locked, now) != PLANNED:
        raise StopHasBegun(
            f"the {locked.kind} has begun and cannot be deleted",
            hint=f"POST /api/v1/{locked.kind}s/{locked.pk}/lift ends it",
        )
    record(Action.STOP_DELETED, locked, tenant_id=locked.tenant_id, before=facts(locked), reason=reason)
    locked.delete()


def _lock(stop: Stop) -> tuple[Stop, datetime]:
    """The row is ours, and then the clock is read: it was over before, or ends when we say.

    Visits share the row, one after the other; who stands in this queue is let in before those that come later.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s, %s)", [STOP_QUEUE, stop.pk])
    locked = Stop.objects.select_for_update(no_key=True).filter(pk=stop.pk).first()
    if locked is None:
        raise Missing
    return locked, database_now()


def _free_earlier_workers(stop: Stop) -> None:
    """Workers of the version before ask the pool itself, where a pause from then still stands.

    Who resumes the pool has its row and waits for the stop: it comes by here as well.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE beatkeeper_pool SET paused_at = NULL WHERE id = (SELECT id FROM beatkeeper_pool"
            " WHERE id = %s AND paused_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED)",
            [stop.pool_id],
        )


def over_at(stop: Stop) -> datetime | None:
    return min((at for at in (stop.lifted_at, stop.ends_at) if at is not None), default=None)


def state_of(stop: Stop, now: datetime) -> str:
    end = over_at(stop)
    if end is not None and end <= now:
        return OVER
    return PLANNED if stop.begins_at > now else IN_FORCE


def in_state(state: str, now: datetime) -> Q:
    is_over = Q(lifted_at__lte=now) | Q(ends_at__lte=now)
    if state == OVER:
        return is_over
    begun = Q(begins_at__lte=now)
    return ~is_over & (begun if state == IN_FORCE else ~begun)


def seen_by(tenant: Tenant) -> QuerySet[Stop]:
    """Its own, and those of the platform that may concern its jobs."""
    of_all = Q(tenant=None) & (Q(pool=None) | Q(pool__in=Pool.objects.open_to(tenant)))
    return Stop.objects.filter(Q(tenant=tenant) | of_all).select_related("tenant", "pool")


def read_stops(until: datetime) -> Stops:
    """Those that have begun by then and are not settled."""
    unsettled = Stop.objects.filter(settled_at=None, begins_at__lte=until).order_by("begins_at", "id")
    return Stops(tuple(as_row(stop) for stop in unsettled))


def as_row(stop: Stop) -> StopRow:
    return StopRow(
        stop.pk,
        stop.kind,
        stop.effect,
        stop.tenant_id,
        stop.pool_id,
        stop.tag_name,
        stop.tag_value,
        stop.begins_at,
        over_at(stop),
        stop.note,
    )


def of_job(job: Job, now: datetime) -> list[StopRow]:
    """All that keep the job from running now."""
    return list(read_stops(now).of(job.tenant_id, job.pool_id, job.tags, now))


def tag_of(stop: Stop) -> str | None:
    """As it is written: `team` for any value, `team:payments` for one."""
    return f"{stop.tag_name}:{stop.tag_value}".removesuffix(":") if stop.tag_name else None


def in_words(stop: Stop) -> str:
    """What it concerns."""
    whose = f" of {stop.tenant}" if stop.tenant else ""
    tagged = f" tagged {tag_of(stop)}" if stop.tag_name else ""
    where = f" in the pool {stop.pool}" if stop.pool else ""
    return f"all jobs{whose}{tagged}{where}"


def facts(stop: Stop) -> Json:
    """The stop as an audit entry shows it."""
    return {
        "kind": stop.kind,
        "tenant": stop.tenant.slug if stop.tenant else None,
        "tag": tag_of(stop),
        "pool": stop.pool.slug if stop.pool else None,
        "effect": stop.effect,
        "note": stop.note,
        "begins_at": instants.as_text(stop.begins_at),
        "ends_at": instants.as_text(stop.ends_at) if stop.ends_at else None,
        "lifted_at": instants.as_text(stop.lifted_at) if stop.lifted_at else None,
    }


def _is_of_a_pool(stop: Stop) -> bool:
    """Of whoever's jobs are in it. Nothing of them is missed then: they wait."""
    return stop.kind == StopKind.PAUSE and stop.pool is not None and not stop.tenant and not stop.tag_name


def _set(stop: Stop, values: Json) -> None:
    for name, value in values.items():
        setattr(stop, name, value)


def _check(stop: Stop, now: datetime) -> None:
    """What no field says by itself."""
    if _is_of_a_pool(stop) and stop.effect != Effect.HOLD:
        raise refused("effect", "the runs of a paused pool are held", "hold, or leave it out")
    if stop.ends_at is None:
        if stop.kind == StopKind.BLACKOUT:
            raise refused("ends_at", "ends_at is required", "a blackout ends by itself", "required")
        return
    ends, begins = instants.as_text(stop.ends_at), instants.as_text(stop.begins_at)
    if stop.ends_at <= now:
        raise refused("ends_at", f"{ends} is in the past", f"it is now {instants.as_text(now)}", "past")
    if stop.ends_at <= stop.begins_at:
        raise refused("ends_at", f"{ends} is not after the beginning, {begins}", "an instant after begins_at")


def _refuse_too_many(tenant: Tenant | None) -> None:
    """Requests at the same moment may go a little beyond."""
    if tenant is not None and Stop.objects.filter(tenant=tenant, settled_at=None).count() >= MOST_STOPS:
        raise TooManyStops(
            f"{MOST_STOPS} pauses and blackouts are planned or in force already",
            hint="lift one, or make one of a tag or a pool that takes the place of several",
        )


def _refuse_naming_nothing(stop: Stop) -> None:
    """An empty request must not stop everything."""
    if not stop.tag_name and stop.pool is None:
        whose = "all of your jobs" if stop.tenant else "all jobs of everybody"
        hint = f'a tag, a pool, or "everything": true for {whose}'
        raise refused("tag", f"nothing says what the {stop.kind} concerns", hint, "required")


def _refuse_change_of_begun(stop: Stop, changed: list[str]) -> None:
    fixed = [name for name in changed if name not in CHANGEABLE_ONCE_BEGUN]
    if fixed:
        raise StopHasBegun(
            f"the {stop.kind} has begun: {' and '.join(fixed)} cannot be changed any more",
            field=fixed[0],
            hint="lift it and make another one",
        )


def _read(kind: StopKind, data: object, tenant: Tenant | None, now: datetime, present: Stop | None) -> Json:
    """The columns that a request names. All mistakes are told at once."""
    given = expect_object(data, "")
    refuse_unknown(given, FIELDS, "")
    readers: dict[str, Callable[[Any], Json]] = {
        "tag": _read_tag,
        "pool": lambda value: {"pool": _read_pool(value, tenant)},
        "everything": lambda value: _read_everything(value, given),
        "effect": lambda value: {"effect": _read_effect(value, kind)},
        "note": lambda value: {"note": read_note(value)},
        "begins_at": lambda value: {"begins_at": _read_beginning(value, now, present)},
        "ends_at": lambda value: {"ends_at": None if value is None else instants.read(value, "ends_at")},
    }
    values: Json = {}
    errors: list[FieldError] = []
    for name, read in readers.items():
        if name in given:
            try:
                values |= read(given[name])
            except InvalidInput as invalid:
                errors += invalid.errors
    if errors:
        raise InvalidInput(errors)
    return values


def _read_tag(value: object) -> Json:
    if value is None:
        return {"tag_name": "", "tag_value": ""}
    name, _, text = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (1 <= len(name) <= LONGEST_TAG_NAME and name.isprintable() and len(text) <= LONGEST_TAG_VALUE):
        detail = f"{shown(value)} names no tag"
        raise refused("tag", detail, "name:value, or the name alone for every value: team:payments, team")
    return {"tag_name": name, "tag_value": text}


def _read_pool(value: object, tenant: Tenant | None) -> Pool | None:
    if value is None:
        return None
    pools = Pool.objects.open_to(tenant) if tenant else Pool.objects.all()
    found = pools.filter(slug=value).first() if isinstance(value, str) else None
    if found is None:
        known = list(pools.values_list("slug", flat=True))
        hint = near(str(value), known) or listed(known, "there are")
        raise refused("pool", f"there is no pool {shown(value)}", hint, "unknown_pool")
    return found


def _read_everything(value: object, given: Json) -> Json:
    if not isinstance(value, bool):
        raise refused("everything", f"{shown(value)} is not a boolean", "true or false", "wrong_type")
    if not value:
        raise refused("everything", "false says nothing", "true, or leave it out")
    named = [name for name in ("tag", "pool") if given.get(name) is not None]
    if named:
        raise refused("everything", f"everything and {named[0]} are both given", "one of them")
    return {"tag_name": "", "tag_value": "", "pool": None}


def _read_effect(value: object, kind: StopKind) -> Effect:
    allowed = {effect.value: EFFECT_HINTS[effect] for effect in EFFECTS[kind]}
    if not isinstance(value, str) or value not in allowed:
        hint = "; ".join(f"{name}: {meaning}" for name, meaning in allowed.items())
        raise refused("effect", f"{shown(value)} is not what a {kind} can do", hint)
    return Effect(value)


def read_note(value: object, field: str = "note") -> str:
    if not isinstance(value, str) or len(value) > LONGEST_NOTE:
        raise refused(
            field, f"{shown(value)} is not a note", f"a string of at most {LONGEST_NOTE} characters"
        )
    return value


def _read_beginning(value: object, now: datetime, present: Stop | None) -> datetime:
    if value is None:
        return present.begins_at if present else now
    begins = instants.read(value, "begins_at")
    if present and begins == present.begins_at:
        return begins
    if begins < now - TOLERANCE:
        hint = f"it is now {instants.as_text(now)}; leave it out to begin now"
        raise refused("begins_at", f"{instants.as_text(begins)} is in the past", hint, "past")
    return max(begins, now)
