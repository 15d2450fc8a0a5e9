"""Writes who changed what, in the transaction of the change."""

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
    """An audit entry belongs into the transaction of its change."""


def record(
    action: Action,
    about: models.Model,
    *,
    tenant_id: int | None = None,
    before: Facts | None = None,
    after: Facts | None = None,
    reason: str = "",
) -> AuditEntry:
    """With both sides given, only what differs between them is kept."""
    before, after = _differences(before, after)
    entry = _entry(action, about, tenant_id, reason)
    entry.before, entry.after = redact(before), redact(after)
    entry.save(force_insert=True)
    return entry


def record_each(
    action: Action, abouts: Iterable[models.Model], *, tenant_id: int | None = None, reason: str = ""
) -> None:
    """One entry for each object of a change of many, in few statements."""
    AuditEntry.objects.bulk_create([_entry(action, about, tenant_id, reason) for about in abouts], BATCH)


def _entry(action: Action, about: models.Model, tenant_id: int | None, reason: str) -> AuditEntry:
    if not transaction.get_connection().in_atomic_block:
        raise RecordedOutsideTransaction(action)
    acting = current()
    actor = acting.who()
    return AuditEntry(
        tenant_id=tenant_id,
        actor_kind=actor.kind,
        actor=actor.name[:200],
        action=action,
        object_type=str(about._meta.model_name),
        object_id=str(about.pk),
        reason=reason,
        request_id=acting.request_id,
        address=acting.address,
    )


def _differences(before: Facts | None, after: Facts | None) -> tuple[Facts | None, Facts | None]:
    # Compared before they are masked: a changed password must still show as a change.
    if before is None or after is None:
        return before, after
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {n: before[n] for n in changed if n in before}, {n: after[n] for n in changed if n in after}
