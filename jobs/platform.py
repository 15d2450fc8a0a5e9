"""What operators keep for everybody: tenants and pools. Each change has its audit entry."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.record import record
from jobs import stops
from jobs.database_clock import database_now
from jobs.input_checks import refused, shown
from jobs.models import Pool, Stop, StopKind, Tenant
from jobs.targets import LONGEST_TASK, RESERVED_TASKS, is_reserved

Facts = dict[str, Any]
ACTIONS: dict[type[models.Model], tuple[Action, Action]] = {
    Tenant: (Action.TENANT_CREATED, Action.TENANT_EDITED),
    Pool: (Action.POOL_CREATED, Action.POOL_EDITED),
}


def facts(kept: Tenant | Pool) -> Facts:
    found = {field.name: _as_json(getattr(kept, field.name)) for field in kept._meta.concrete_fields}
    if isinstance(kept, Pool):
        found["tenants"] = sorted(kept.tenants.values_list("slug", flat=True))
    return found


def record_saved(kept: Tenant | Pool, before: Facts | None, reason: str = "") -> None:
    after = facts(kept)
    if before != after:
        created, edited = ACTIONS[type(kept)]
        tenant_id = kept.pk if isinstance(kept, Tenant) else None
        action = edited if before else created
        record(action, kept, tenant_id=tenant_id, before=before, after=after, reason=reason)


@transaction.atomic
def export_tasks(pool: Pool, tasks: Iterable[str], reason: str = "") -> None:
    """Beside those it exports already. What acts on the platform itself is nobody's to export."""
    tasks = set(tasks)
    for task in sorted(tasks):
        if is_reserved(task) or not 1 <= len(task) <= LONGEST_TASK:
            hint = f"at most {LONGEST_TASK} characters, and none of {', '.join(RESERVED_TASKS)}"
            raise refused("exported_tasks", f"{shown(task)} cannot be exported", hint)
    locked = _lock(pool)
    before = facts(locked)
    locked.exported_tasks = sorted({*locked.exported_tasks, *tasks})
    locked.save(update_fields=["exported_tasks"])
    record_saved(locked, before, reason)


@transaction.atomic
def pause_pool(pool: Pool, reason: str = "") -> None:
    """Nothing more is handed over there; what runs goes on, what is due waits. A paused pool stays as it is."""
    locked = _lock(pool)
    if not pauses(locked).exists():
        stop = stops.create_stop(StopKind.PAUSE, {"pool": locked.slug, "note": reason}, tenant=None)
        record(Action.POOL_PAUSED, locked, after={"stop": stop.pk}, reason=reason)


@transaction.atomic
def resume_pool(pool: Pool, reason: str = "") -> None:
    """Lifts what pauses just this pool; a pause of everything, or of a tenant, goes on."""
    locked = _lock(pool)
    lifted = [stops.lift_stop(stop, reason).pk for stop in pauses(locked)]
    if lifted:
        record(Action.POOL_RESUMED, locked, before={"stops": lifted}, reason=reason)


def pauses(pool: Pool) -> QuerySet[Stop]:
    """In force, of the pool whoever's jobs are in it."""
    in_force = stops.in_state(stops.IN_FORCE, database_now())
    return pool.stops.filter(in_force, kind=StopKind.PAUSE, tenant=None, tag_name="").order_by("pk")


def _lock(pool: Pool) -> Pool:
    """Two who pause it make one pause."""
    return Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)


def _as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
