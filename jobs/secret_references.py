"""`${secret:NAME}` in a target or an input, checked when it is written down: its place, and that there is one."""

from collections.abc import Iterable, Iterator
from typing import Any

from jobs.input_checks import Json, listed, near, refused, shown
from jobs.models import Secret, Tenant
from jobs.refusals import MOST_ERRORS, FieldError, InvalidInput
from scheduler_project.sdk.references import LEAD, NAME, names_in, references_in

CODE = "secret_reference"


def check_target(tenant: Tenant, target: Json) -> None:
    _refuse_arguments(target)
    _check(tenant, target, "target")


def check_input(tenant: Tenant, given: Json | None, field: str = "input") -> None:
    if given is not None:
        _check(tenant, given, field)


def _check(tenant: Tenant, value: Json, field: str) -> None:
    """All mistakes at once. The secrets stay until the transaction ends: who deletes one waits, and finds the job."""
    errors = list(_mistakes(value, field))
    if not errors:
        names = names_in(value)
        missing = set(names) - held(tenant, names)
        errors = [_unknown(tenant, value, field, name) for name in sorted(missing)]
    if errors:
        raise InvalidInput(errors[:MOST_ERRORS])


def held(tenant: Tenant, names: Iterable[str]) -> set[str]:
    """Those of them that there are, in the order of their names, as everybody locks them. A new value may come."""
    names = list(names)
    if not names:
        return set()
    return {
        secret.name
        for secret in Secret.objects.raw(
            "SELECT id, name FROM beatkeeper_secret WHERE tenant_id = %s AND name = ANY (%s)"
            " ORDER BY name FOR KEY SHARE",
            [tenant.pk, names],
        )
    }


def _refuse_arguments(target: Json) -> None:
    if names_in(target.get("argv")):
        raise refused(
            "target.argv",
            "a secret in the arguments of a command can be read by everybody on the worker's machine",
            "put it into target.env, where the command alone reads it",
            CODE,
        )


def _mistakes(value: Any, field: str) -> Iterator[FieldError]:
    if isinstance(value, str):
        for name in references_in(value):
            if not NAME.fullmatch(name):
                # Not echoed: somebody may have put the secret itself there.
                hint = "${secret:NAME}, of letters, digits and _; $${secret: for that text itself"
                yield FieldError(field, "a reference to a secret cannot be read", hint, CODE)
    elif isinstance(value, dict):
        for name, item in value.items():
            if LEAD in name:
                hint = "only values refer to secrets"
                yield FieldError(field, f"a reference to a secret in the name {shown(name)}", hint, CODE)
            yield from _mistakes(item, f"{field}.{name[:60]}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _mistakes(item, f"{field}[{number}]")


def _unknown(tenant: Tenant, value: Json, field: str, name: str) -> FieldError:
    known = list(Secret.objects.of(tenant).values_list("name", flat=True))
    hint = near(name, known) or listed(known, "there are") or "none is there yet: POST /api/v1/secrets"
    where = next((path for path, text in _texts(value, field) if name in references_in(text)), field)
    return FieldError(where, f"there is no secret {name}", hint, "unknown_secret")


def _texts(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{field}.{name[:60]}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{field}[{number}]")
