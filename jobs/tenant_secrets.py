"""A tenant's secrets: written by an administrator, read by nobody but the claims of its runs.

A value comes in and never goes out: no answer, audit entry, message or log has it, nor what was sent in its place by
mistake. Each change is a transaction with its audit entry, which says that there was one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Count, QuerySet
from django.views.decorators.debug import sensitive_variables

from auditlog.actions import Action
from auditlog.context import current_actor
from auditlog.record import record
from jobs.database_clock import database_now
from jobs.input_checks import refused
from jobs.models import JobVersion, Secret, Tenant
from jobs.refusals import Conflict, DuplicateName, FieldError, InvalidInput, Missing
from jobs.used_by import job_names, of_living_jobs
from scheduler_project.sdk.masking import SHORTEST_SECRET
from scheduler_project.sdk.references import NAME, SecretUnreadable
from scheduler_project.sdk.secret_box import MAKE_ONE, SecretBox

LONGEST_VALUE = 32_768
MOST_SECRETS = 500
NAME_HINT = "letters, digits and _, no digit first, at most 60, such as PAYMENTS_KEY"


class NoEncryptionKey(Conflict):
    """There is no key to encrypt secrets with."""

    code = "no_encryption_key"


class SecretInUse(Conflict):
    """Jobs refer to this secret."""

    code = "secret_in_use"


class TooManySecrets(Conflict):
    """A tenant has as many secrets as it may."""

    code = "too_many_secrets"


@dataclass
class Rotated:
    """What `rotate` did, and what it had to leave: of these no key that is known opens the secret."""

    renewed: int = 0
    unreadable: list[str] = field(default_factory=list)


@sensitive_variables("data", "value")
@transaction.atomic
def create_secret(tenant: Tenant, data: object) -> Secret:
    given = _read(data, ("name", "value"))
    if Secret.objects.of(tenant).count() >= MOST_SECRETS:
        raise TooManySecrets(f"{MOST_SECRETS} secrets are there already", hint="delete one that no job uses")
    try:
        with transaction.atomic():
            return _insert(tenant, given["name"], given["value"])
    except IntegrityError as error:
        if "secret_name_once_per_tenant" not in str(error):
            raise
        hint = "choose another name, or give that secret a new value"
        raise DuplicateName("there is a secret of this name already", field="name", hint=hint) from None


@sensitive_variables("data", "value")
@transaction.atomic
def change_secret(secret: Secret, data: object) -> Secret:
    """A new value. Claims from now on get it."""
    value = _read(data, ("value",))["value"]
    locked = Secret.objects.select_for_update(no_key=True).filter(pk=secret.pk).first()
    if locked is None:
        raise Missing
    box = encrypting_box()
    locked.ciphertext = box.seal(locked.tenant_id, locked.name, value)
    locked.key_id = box.key_ids[0]
    locked.updated_at, locked.updated_by = database_now(), current_actor().name[:200]
    locked.save(update_fields=["ciphertext", "key_id", "updated_at", "updated_by"])
    record(
        Action.SECRET_CHANGED,
        locked,
        tenant_id=locked.tenant_id,
        after={"name": locked.name, "value": "changed"},
    )
    return locked


@sensitive_variables("data")
def put_secret(tenant: Tenant, name: str, data: object) -> tuple[Secret, bool]:
    """Creates it or gives it a new value, so that doing it twice is doing it once. True: it is new."""
    _read(data, ("value",))
    found = Secret.objects.of(tenant).filter(name=name).first()
    if found is None:
        try:
            return create_secret(tenant, {"name": name, **_fields(data)}), True
        except DuplicateName:
            # Somebody else was first.
            found = Secret.objects.of(tenant).get(name=name)
    return change_secret(found, data), False


@transaction.atomic
def delete_secret(secret: Secret, reason: str = "") -> None:
    """Only while no job refers to it. A run that is under way and needs it fails, and names it."""
    # Waits for jobs that are being saved with it (secret_references.held), and then finds them.
    locked = Secret.objects.select_for_update().filter(pk=secret.pk).first()
    if locked is None:
        raise Missing
    rest = f" and more: GET /api/v1/jobs?secret={locked.name}"
    if names := job_names(users(locked).order_by("job__name"), rest):
        raise SecretInUse(f"jobs refer to {locked.name}: {names}", hint="take it out of their targets first")
    record(
        Action.SECRET_DELETED, locked, tenant_id=locked.tenant_id, before={"name": locked.name}, reason=reason
    )
    locked.delete()


def users(secret: Secret) -> QuerySet[JobVersion]:
    """The present versions of the jobs that refer to it."""
    named = JobVersion.objects.filter(job__tenant=secret.tenant_id, secret_names__contains=[secret.name])
    # Of an index of those that refer to any.
    return of_living_jobs(named.exclude(secret_names=[]))


def box() -> SecretBox:
    return SecretBox(settings.ENCRYPTION_KEYS)


def encrypting_box() -> SecretBox:
    found = box()
    if not found:
        raise NoEncryptionKey(hint=f"an operator sets ENCRYPTION_KEYS; a key is made so: {MAKE_ONE}")
    return found


def rotate(batch: int) -> Rotated:
    """Encrypts with the first key what another one encrypts, so many at once; the others can then be taken away.

    Whoever gives a secret a new value meanwhile does so with the first key too, so no row is done twice.
    """
    found, after, rotated = encrypting_box(), 0, Rotated()
    while ids := list(_of_other_keys(found).filter(pk__gt=after).values_list("pk", flat=True)[:batch]):
        with transaction.atomic():
            for secret in _of_other_keys(found).filter(pk__in=ids).select_for_update(no_key=True):
                _renew(secret, found, rotated)
        after = ids[-1]
    return rotated


def counts_by_key() -> Iterator[tuple[str, int]]:
    """Which keys encrypt how many secrets."""
    yield from Secret.objects.values_list("key_id").annotate(count=Count("pk")).order_by("key_id")


def _of_other_keys(found: SecretBox) -> QuerySet[Secret]:
    return Secret.objects.exclude(key_id=found.key_ids[0]).order_by("pk")


def _renew(secret: Secret, found: SecretBox, rotated: Rotated) -> None:
    try:
        value = found.open(secret.tenant_id, secret.name, secret.ciphertext)
    except SecretUnreadable as error:
        rotated.unreadable.append(f"{secret.tenant_id}/{secret.name}: {error}")
        return
    secret.ciphertext, secret.key_id = found.seal(secret.tenant_id, secret.name, value), found.key_ids[0]
    secret.save(update_fields=["ciphertext", "key_id"])
    rotated.renewed += 1


@sensitive_variables("value")
def _insert(tenant: Tenant, name: str, value: str) -> Secret:
    box, now, actor = encrypting_box(), database_now(), current_actor().name[:200]
    secret = Secret(
        tenant=tenant,
        name=name,
        ciphertext=box.seal(tenant.pk, name, value),
        key_id=box.key_ids[0],
        created_at=now,
        created_by=actor,
        updated_at=now,
        updated_by=actor,
    )
    secret.save(force_insert=True)
    record(Action.SECRET_CREATED, secret, tenant_id=tenant.pk, after={"name": name})
    return secret


@sensitive_variables()
def _read(data: object, required: tuple[str, ...]) -> dict[str, Any]:
    """All mistakes at once, and nothing of what was sent: a value may have come in any place."""
    given = _fields(data)
    errors = []
    if any(name not in required for name in given):
        hint = f"it takes {' and '.join(required)}"
        errors.append(FieldError("", "there are fields that are not known", hint, "unknown_field"))
    errors += [
        FieldError(name, f"{name} is required", code="required") for name in required if name not in given
    ]
    if "name" in required and "name" in given and not _is_name(given["name"]):
        errors.append(FieldError("name", "it is not the name of a secret", NAME_HINT))
    if "value" in given:
        errors += _mistakes_of_value(given["value"])
    if errors:
        raise InvalidInput(errors)
    return given


def _fields(data: object) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise refused("", "the body is not an object", "a JSON object {…}", "wrong_type")
    return data


def _is_name(value: object) -> bool:
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def _mistakes_of_value(value: object) -> Iterator[FieldError]:
    if not isinstance(value, str):
        yield FieldError("value", "it is not a string", code="wrong_type")
        return
    if len(value) < SHORTEST_SECRET:
        why = f"a secret of fewer than {SHORTEST_SECRET} characters would mask half of every log"
        yield FieldError("value", why, f"at least {SHORTEST_SECRET} characters", "too_short")
    if len(value.encode("utf-8", "surrogatepass")) > LONGEST_VALUE:
        yield FieldError("value", "it is too long", f"at most {LONGEST_VALUE} bytes", "too_large")
    if "\x00" in value or value.encode("utf-8", "replace").decode() != value:
        yield FieldError("value", "it holds what is no character: NUL, or half a surrogate pair")
