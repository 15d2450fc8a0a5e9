"""Do a request with an Idempotency-Key once, and answer its repetitions the same."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from jobs.errors import KeyReused
from jobs.models import IdempotentRequest, Tenant
from jobs.validation.checks import Json, invalid

KEPT = timedelta(days=1)
PURGED_AT_ONCE = 20


@dataclass(frozen=True)
class StoredResponse:
    status: int
    body: Json
    replayed: bool = False


def read_key(given: str) -> str:
    if len(given) > 200 or not given.isascii() or not given.isprintable():
        hint = "at most 200 printable ASCII characters; a UUID is good"
        raise invalid("Idempotency-Key", "the Idempotency-Key is not usable", hint)
    return sha256(given.encode()).hexdigest()


@transaction.atomic
def once(
    tenant: Tenant, key: str, what: str, body: object, act: Callable[[], StoredResponse]
) -> StoredResponse:
    """Store the answer in the transaction of the act: both are committed, or neither.

    A repetition that comes while the first request is being done waits for it at the unique key.
    """
    fingerprint = _fingerprint(what, body)
    _purge_old()
    try:
        with transaction.atomic():
            row = IdempotentRequest.objects.create(tenant=tenant, key=key, fingerprint=fingerprint)
    except IntegrityError:
        row = IdempotentRequest.objects.get(tenant=tenant, key=key)
        if row.fingerprint != fingerprint:
            detail, hint = (
                "this Idempotency-Key was used for another request",
                "a new key for every new request",
            )
            raise KeyReused(detail, field="Idempotency-Key", hint=hint) from None
        return StoredResponse(row.status, row.answer or {}, replayed=True)
    answer = act()
    row.status, row.answer = answer.status, answer.body
    row.save(update_fields=["status", "answer"])
    return answer


def _fingerprint(what: str, body: object) -> str:
    return sha256(json.dumps([what, body], sort_keys=True).encode()).hexdigest()


def _purge_old() -> None:
    """Delete a few old answers with every request, so that no request deletes many."""
    old = IdempotentRequest.objects.filter(created_at__lt=Now() - KEPT).order_by("created_at")
    ids = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:PURGED_AT_ONCE])
    if ids:
        IdempotentRequest.objects.filter(pk__in=ids).delete()
