"""Writes who changed what, in the transaction of the change."""

from typing import Any

from django.db import models, transaction

from auditlog.actions import Action
from auditlog.context import current
from auditlog.models import AuditEntry
from auditlog.redaction import redact

Facts = dict[str, Any]


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
    if not transaction.get_connection().in_atomic_block:
        raise RecordedOutsideTransaction(action)
    acting = current()
    actor = acting.who()
    before, after = _differences(before, after)
    return AuditEntry.objects.create(
        tenant_id=tenant_id,
        actor_kind=actor.kind,
        actor=actor.name[:200],
        action=action,
        object_type=str(about._meta.model_name),
        object_id=str(about.pk),
        before=redact(before),
        after=redact(after),
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
