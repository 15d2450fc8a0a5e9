"""Write audit entries in the transaction of the change."""

from collections.abc import Iterable
from typing import Any

from django.db import models, transaction

from auditlog.actions import Action
from auditlog.context import current
from auditlog.models import AuditEntry
from auditlog.redaction import redact

Facts = dict[str, Any]
BATCH = 1000


class RecordedOutsideTransaction(RuntimeError):
    """An audit entry must be written in the transaction of its change."""


def record(
    action: Action,
    about: models.Model,
    *,
    tenant_id: int | None = None,
    before: Facts | None = None,
    after: Facts | None = None,
    reason: str = "",
) -> AuditEntry:
    """Write an entry, in the tenant of the object unless another is given.

    With both sides given, keep only what differs between them.
    """
    # Compared before they are masked: a changed password must still show as a change.
    if before is not None and after is not None:
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        before, after = ({name: side[name] for name in changed if name in side} for side in (before, after))
    tenant_id = getattr(about, "tenant_id", None) if tenant_id is None else tenant_id
    entry = _entry(action, about, tenant_id, reason)
    entry.before, entry.after = redact(before), redact(after)
    entry.save(force_insert=True)
    return entry


def record_each(
    action: Action, abouts: Iterable[models.Model], *, tenant_id: int | None = None, reason: str = ""
) -> None:
    """Write one entry for each object of a bulk change, in few statements."""
    AuditEntry.objects.bulk_create([_entry(action, about, tenant_id, reason) for about in abouts], BATCH)


def _entry(action: Action, about: models.Model, tenant_id: int | None, reason: str) -> AuditEntry:
    if not transaction.get_connection().in_atomic_block:
        raise RecordedOutsideTransaction(action)
    acting = current()
    actor = acting.who()
    entry = AuditEntry(tenant_id=tenant_id, action=action, reason=reason)
    entry.actor_kind, entry.actor = actor.kind, actor.name[:200]
    entry.object_type, entry.object_id = str(about._meta.model_name), str(about.pk)
    entry.request_id, entry.address = acting.request_id, acting.address
    return entry
