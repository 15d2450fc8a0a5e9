"""The same request with the same Idempotency-Key is done once and answered the same."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from jobs.input_checks import Json, refused
from jobs.models import IdempotentRequest, Tenant
from jobs.refusals import KeyReused

KEPT = timedelta(days=1)
FORGOTTEN_AT_ONCE = 20


@dataclass(frozen=True)
class Answer:
    status: int
    body: Json
    replayed: bool = False


def read_key(given: str) -> str:
    if len(given) > 200 or not given.isascii() or not given.isprintable():
        raise refused(
            "Idempotency-Key",
            "the Idempotency-Key is not usable",
            "at most 200 printable ASCII characters; a UUID is good",
        )
    return sha256(given.encode()).hexdigest()


@transaction.atomic
def once(tenant: Tenant, key: str, what: str, body: object, act: Callable[[], Answer]) -> Answer:
    """Remembers the answer in the transaction of the act: both stand, or neither.

    A second request that comes while the first is being done waits for it at the unique key.
    """
    fingerprint = _fingerprint(what, body)
    _forget_old(tenant)
    try:
        with transaction.atomic():
            row = IdempotentRequest.objects.create(tenant=tenant, key=key, fingerprint=fingerprint)
    except IntegrityError:
        return _replay(tenant, key, fingerprint)
    answer = act()
    row.status, row.answer = answer.status, answer.body
    row.save(update_fields=["status", "answer"])
    return answer


def _replay(tenant: Tenant, key: str, fingerprint: str) -> Answer:
    row = IdempotentRequest.objects.get(tenant=tenant, key=key)
    if row.fingerprint != fingerprint:
        raise KeyReused(
            "this Idempotency-Key was used for another request",
            field="Idempotency-Key",
            hint="a new key for every new request",
        )
    return Answer(row.status, row.answer or {}, replayed=True)


def _fingerprint(what: str, body: object) -> str:
    text = json.dumps([what, body], sort_keys=True)
    return sha256(text.encode()).hexdigest()


def _forget_old(tenant: Tenant) -> None:
    """A few at a time, by whoever comes: no request pays for many."""
    old = IdempotentRequest.objects.filter(created_at__lt=Now() - KEPT).order_by("created_at")
    ids = list(old.select_for_update(skip_locked=True).values_list("pk", flat=True)[:FORGOTTEN_AT_ONCE])
    if ids:
        IdempotentRequest.objects.filter(pk__in=ids).delete()
