"""Change pools, and record what operators change of tenants and pools, each with an audit entry."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.db import models, transaction
from django.db.models import QuerySet

from auditlog.actions import Action
from auditlog.record import record
from jobs.clock import database_now
from jobs.models import Pool, Suspension, SuspensionKind, SuspensionState, Tenant
from jobs.spec.targets.celery import MAX_TASK_LENGTH, RESERVED_TASKS, is_reserved
from jobs.suspensions import service as suspensions
from jobs.validation.checks import abbreviate, invalid

Snapshot = dict[str, Any]
ACTIONS: dict[type[models.Model], tuple[Action, Action]] = {
    Tenant: (Action.TENANT_CREATED, Action.TENANT_EDITED),
    Pool: (Action.POOL_CREATED, Action.POOL_EDITED),
}
# Nobody's edit: an entry would show one that nobody made.
WRITTEN_BY_SCHEDULERS = ("broker_queue", "queued_since")


def audit_snapshot(kept: Tenant | Pool) -> Snapshot:
    fields = [field.name for field in kept._meta.concrete_fields if field.name not in WRITTEN_BY_SCHEDULERS]
    found = {name: _as_json(getattr(kept, name)) for name in fields}
    if isinstance(kept, Pool):
        found["tenants"] = sorted(kept.tenants.values_list("slug", flat=True))
    return found


def record_saved(kept: Tenant | Pool, before: Snapshot | None, reason: str = "") -> None:
    after = audit_snapshot(kept)
    if before != after:
        created, edited = ACTIONS[type(kept)]
        tenant_id = kept.pk if isinstance(kept, Tenant) else None
        action = edited if before else created
        record(action, kept, tenant_id=tenant_id, before=before, after=after, reason=reason)


@transaction.atomic
def export_tasks(pool: Pool, tasks: Iterable[str], reason: str = "") -> None:
    """Export more tasks. Tasks that act on the platform itself cannot be exported."""
    tasks = set(tasks)
    for task in sorted(tasks):
        if is_reserved(task) or not 1 <= len(task) <= MAX_TASK_LENGTH:
            hint = f"at most {MAX_TASK_LENGTH} characters, and none of {', '.join(RESERVED_TASKS)}"
            raise invalid("exported_tasks", f"{abbreviate(task)} cannot be exported", hint)
    add_exported_tasks(_lock(pool), tasks, reason)


def add_exported_tasks(locked: Pool, tasks: Iterable[str], reason: str = "") -> None:
    before = audit_snapshot(locked)
    locked.exported_tasks = sorted({*locked.exported_tasks, *tasks})
    locked.save(update_fields=["exported_tasks"])
    record_saved(locked, before, reason)


@transaction.atomic
def pause_pool(pool: Pool, reason: str = "") -> None:
    """Hold the pool's runs back, unless it is paused. Running ones go on; due ones wait."""
    locked = _lock(pool)
    if not pauses(locked).exists():
        request = {"pool": locked.slug, "reason": reason}
        suspension = suspensions.create_suspension(SuspensionKind.PAUSE, request, tenant=None)
        record(Action.POOL_PAUSED, locked, after={"suspension": suspension.pk}, reason=reason)


@transaction.atomic
def resume_pool(pool: Pool, reason: str = "") -> None:
    """Lift the pauses of this whole pool. A pause of everything or of a tenant stays."""
    locked = _lock(pool)
    lifted = [suspensions.lift_suspension(suspension, reason).pk for suspension in pauses(locked)]
    if lifted:
        record(Action.POOL_RESUMED, locked, before={"suspensions": lifted}, reason=reason)


def pauses(pool: Pool) -> QuerySet[Suspension]:
    """Return the pauses in force of the whole pool, for the jobs of all tenants."""
    found = pool.suspensions.filter(kind=SuspensionKind.PAUSE, tenant=None, tag_name="")
    return found.in_state(SuspensionState.IN_FORCE, database_now()).order_by("pk")


def _lock(pool: Pool) -> Pool:
    # Two requests that pause the pool make one pause: the second waits here and sees the first.
    return Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)


def _as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
