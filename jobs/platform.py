"""What operators keep for everybody: tenants and pools. Each change has its audit entry."""

from datetime import datetime
from typing import Any

from django.db import models, transaction

from auditlog.actions import Action
from auditlog.record import record
from jobs.database_clock import database_now
from jobs.models import Pool, Tenant

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


def record_saved(kept: Tenant | Pool, before: Facts | None) -> None:
    after = facts(kept)
    if before != after:
        created, edited = ACTIONS[type(kept)]
        tenant_id = kept.pk if isinstance(kept, Tenant) else None
        record(edited if before else created, kept, tenant_id=tenant_id, before=before, after=after)


@transaction.atomic
def pause_pool(pool: Pool, reason: str = "") -> None:
    """Nothing more is handed over there; what runs goes on, what is due waits."""
    _set_paused(pool, database_now(), Action.POOL_PAUSED, reason)


@transaction.atomic
def resume_pool(pool: Pool, reason: str = "") -> None:
    _set_paused(pool, None, Action.POOL_RESUMED, reason)


def _set_paused(pool: Pool, paused_at: datetime | None, action: Action, reason: str) -> None:
    locked = Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
    if (locked.paused_at is None) == (paused_at is None):
        return
    before = facts(locked)
    locked.paused_at = paused_at
    locked.save(update_fields=["paused_at"])
    record(action, locked, before=before, after=facts(locked), reason=reason)


def _as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value
