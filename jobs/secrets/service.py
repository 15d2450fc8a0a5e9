"""Create, change, delete and re-encrypt a tenant's secrets, each in a transaction with its audit entry.

No response, audit entry, message or log contains a value, nor what was sent in its place by mistake. Only the claims
of runs decrypt it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, QuerySet
from django.views.decorators.debug import sensitive_variables

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs.clock import database_now
from jobs.errors import Conflict, DuplicateName, FieldError, InUse, TooMany, refuse_any
from jobs.models import JobVersion, Secret, Tenant
from jobs.models.jobs import JobVersionQuerySet
from jobs.validation.checks import invalid, is_storable
from jobs.validation.rows import first_or_missing, refusing_duplicate_name
from scheduler_project.sdk.secret_values.encryption import MAKE_ONE, SecretBox
from scheduler_project.sdk.secret_values.masking import MIN_SECRET
from scheduler_project.sdk.secret_values.references import NAME, SecretUnreadable

MAX_VALUE_BYTES = 32_768
MAX_SECRETS = 500
NAME_HINT = "letters, digits and _, no digit first, at most 60, such as PAYMENTS_KEY"


class NoEncryptionKey(Conflict, code="no_encryption_key"):
    """There is no key to encrypt secrets with."""


@dataclass
class Rotation:
    """Count the secrets that were encrypted anew, and name those that no known key decrypts."""

    renewed: int = 0
    unreadable: list[str] = field(default_factory=list)


@sensitive_variables("data", "given")
@transaction.atomic
def create_secret(tenant: Tenant, data: object) -> Secret:
    given = _read(data, ("name", "value"))
    if tenant.secrets.count() >= MAX_SECRETS:
        detail, hint = f"{MAX_SECRETS} secrets are there already", "delete one that no job uses"
        raise TooMany(detail, hint=hint, code="too_many_secrets")
    detail = "there is a secret of this name already"
    hint = "choose another name, or give that secret a new value"
    secret = Secret(tenant=tenant, name=given["name"])
    _encrypt(secret, given["value"])
    secret.created_at, secret.created_by = secret.updated_at, secret.updated_by
    with refusing_duplicate_name("secret_name_once_per_tenant", detail, hint):
        secret.save(force_insert=True)
    record(Action.SECRET_CREATED, secret, after={"name": secret.name})
    return secret


@sensitive_variables("data", "value")
@transaction.atomic
def change_secret(secret: Secret, data: object) -> Secret:
    """Give a secret a new value, which claims get from now on."""
    value = _read(data, ("value",))["value"]
    locked = first_or_missing(Secret.objects.select_for_update(no_key=True).filter(pk=secret.pk))
    _encrypt(locked, value)
    locked.save(update_fields=["ciphertext", "key_id", "updated_at", "updated_by"])
    record(Action.SECRET_EDITED, locked, after={"name": locked.name, "value": "changed"})
    return locked


@sensitive_variables("data")
def put_secret(tenant: Tenant, name: str, data: object) -> tuple[Secret, bool]:
    """Create a secret or give it a new value, and say whether it is new. A repeated request changes nothing more."""
    _read(data, ("value",))
    found = tenant.secrets.filter(name=name).first()
    if found is None:
        try:
            return create_secret(tenant, {"name": name, **_fields(data)}), True
        except DuplicateName:
            # Another request created it in between.
            found = tenant.secrets.get(name=name)
    return change_secret(found, data), False


@transaction.atomic
def delete_secret(secret: Secret, reason: str = "") -> None:
    """Delete a secret that no job refers to. A running attempt that still needs it fails, and names it."""
    # The lock conflicts with the key share of jobs that are being saved (references.held): they are found below.
    locked = first_or_missing(Secret.objects.select_for_update().filter(pk=secret.pk))
    rest = f" and more: GET /api/v1/jobs?secret={locked.name}"
    if names := users(locked).order_by("job__name").job_names(rest):
        detail, hint = f"jobs refer to {locked.name}: {names}", "take it out of their targets first"
        raise InUse(detail, hint=hint, code="secret_in_use")
    record(Action.SECRET_DELETED, locked, before={"name": locked.name}, reason=reason)
    locked.delete()


def users(secret: Secret) -> JobVersionQuerySet:
    """Return the present versions of the jobs that refer to a secret."""
    named = JobVersion.objects.filter(job__tenant=secret.tenant_id, secret_names__contains=[secret.name])
    # The partial index holds only versions that refer to a secret, and is used only if the query says so.
    return named.exclude(secret_names=[]).in_use()


def box() -> SecretBox:
    return SecretBox(settings.ENCRYPTION_KEYS)


def encrypting_box() -> SecretBox:
    found = box()
    if not found:
        raise NoEncryptionKey(hint=f"an operator sets ENCRYPTION_KEYS; a key is made so: {MAKE_ONE}")
    return found


def rotate(batch: int) -> Rotation:
    """Encrypt with the first key what other keys encrypt, in batches; the others can then be removed.

    A value that is changed meanwhile is encrypted with the first key too, so each row is done once.
    """
    found, after, rotated = encrypting_box(), 0, Rotation()
    while ids := list(_of_other_keys(found).filter(pk__gt=after).values_list("pk", flat=True)[:batch]):
        with transaction.atomic():
            for secret in _of_other_keys(found).filter(pk__in=ids).select_for_update(no_key=True):
                _renew(secret, found, rotated)
        after = ids[-1]
    return rotated


def counts_by_key() -> Iterator[tuple[str, int]]:
    """Count the secrets of each key."""
    yield from Secret.objects.values_list("key_id").annotate(count=Count("pk")).order_by("key_id")


def _of_other_keys(found: SecretBox) -> QuerySet[Secret]:
    return Secret.objects.exclude(key_id=found.key_ids[0]).order_by("pk")


def _renew(secret: Secret, found: SecretBox, rotated: Rotation) -> None:
    try:
        value = found.open(secret.tenant_id, secret.name, secret.ciphertext)
    except SecretUnreadable as error:
        rotated.unreadable.append(f"{secret.tenant_id}/{secret.name}: {error}")
        return
    secret.ciphertext, secret.key_id = found.seal(secret.tenant_id, secret.name, value), found.key_ids[0]
    secret.save(update_fields=["ciphertext", "key_id"])
    rotated.renewed += 1


@sensitive_variables("value")
def _encrypt(secret: Secret, value: str) -> None:
    box = encrypting_box()
    secret.ciphertext = box.seal(secret.tenant_id, secret.name, value)
    secret.key_id = box.key_ids[0]
    secret.updated_at, secret.updated_by = database_now(), current_actor().name[:200]


@sensitive_variables()
def _read(data: object, required: tuple[str, ...]) -> dict[str, Any]:
    """Read a request and name all its mistakes, echoing nothing: a value may stand in any place of it."""
    given = _fields(data)
    errors = []
    if any(name not in required for name in given):
        hint = f"it takes {' and '.join(required)}"
        errors.append(FieldError("", "there are fields that are not known", hint, "unknown_field"))
    errors += [
        FieldError(name, f"{name} is required", code="required") for name in required if name not in given
    ]
    name = given.get("name")
    if "name" in required and "name" in given and not (isinstance(name, str) and NAME.fullmatch(name)):
        errors.append(FieldError("name", "it is not the name of a secret", NAME_HINT))
    if "value" in given:
        errors += _mistakes_of_value(given["value"])
    refuse_any(errors)
    return given


def _fields(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise invalid("", "the body is not an object", "a JSON object {…}", "wrong_type")
    return data


def _mistakes_of_value(value: object) -> Iterator[FieldError]:
    if not isinstance(value, str):
        yield FieldError("value", "it is not a string", code="wrong_type")
        return
    if len(value) < MIN_SECRET:
        why = f"a secret of fewer than {MIN_SECRET} characters would mask half of every log"
        yield FieldError("value", why, f"at least {MIN_SECRET} characters", "too_short")
    if len(value.encode("utf-8", "surrogatepass")) > MAX_VALUE_BYTES:
        yield FieldError("value", "it is too long", f"at most {MAX_VALUE_BYTES} bytes", "too_large")
    if not is_storable(value):
        yield FieldError("value", "it holds what is no character: NUL, or half a surrogate pair")
