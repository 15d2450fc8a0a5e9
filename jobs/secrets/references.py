"""Check references to secrets, `${secret:NAME}`, in the target or the input of a job that is saved."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from jobs.errors import MAX_ERRORS, FieldError, refuse_any
from jobs.models import Secret, Tenant
from jobs.validation.checks import Json, abbreviate, listed, near
from scheduler_project.sdk.secret_values.references import FOUND, LEAD, NAME, names_in, references_in

CODE = "secret_reference"
# What others write for a secret: ${SECRET:NAME}, ${secrets.NAME}, {{ secret:NAME }}, $secret:NAME, ${{ secrets.NAME }}.
MISSPELT = re.compile(r"(?:\$\{\{?|\{\{|\$\(?)\s*secrets?\s*[:.]", re.IGNORECASE)


def check_references(tenant: Tenant, value: Json, field: str) -> None:
    """Refuse references that cannot be read or have no secret, naming all of them."""
    errors = list(_mistakes(value, field))
    if not errors:
        names = names_in(value)
        missing = set(names) - held(tenant, names)
        errors = [_unknown(tenant, value, field, name) for name in sorted(missing)]
    refuse_any(errors)


def misspelt_references(value: Json, field: str) -> list[str]:
    """Describe texts that look like a reference to a secret and are none, without a text: it may hold a secret."""
    values = ((path, text) for path, text, is_name in _texts(value, field) if not is_name)
    paths = [path for path, text in values if MISSPELT.search(FOUND.sub("", text))]
    return [
        f"{path} holds plain text that looks like a reference to a secret: write ${{secret:NAME}}"
        for path in dict.fromkeys(paths[:MAX_ERRORS])
    ]


def held(tenant: Tenant, names: Iterable[str]) -> set[str]:
    """Lock the secrets of these names and return the names of those that exist.

    A key share lets values change and makes a deletion wait until the job is saved. All lock in the order of names,
    so that two requests do not wait for each other.
    """
    names = list(names)
    if not names:
        return set()
    found = Secret.objects.raw(
        "SELECT id, name FROM beatkeeper_secret WHERE tenant_id = %s AND name = ANY (%s)"
        " ORDER BY name FOR KEY SHARE",
        [tenant.pk, names],
    )
    return {secret.name for secret in found}


def _mistakes(value: Any, field: str) -> Iterator[FieldError]:
    for path, text, is_name in _texts(value, field):
        if is_name and LEAD in text:
            hint = "only values refer to secrets"
            yield FieldError(path, f"a reference to a secret in the name {abbreviate(text)}", hint, CODE)
        for name in () if is_name else references_in(text):
            if not NAME.fullmatch(name):
                # The text is not echoed: it may be the secret itself.
                hint = "${secret:NAME}, of letters, digits and _; $${secret: for that text itself"
                yield FieldError(path, "a reference to a secret cannot be read", hint, CODE)


def _unknown(tenant: Tenant, value: Json, field: str, name: str) -> FieldError:
    known = list(tenant.secrets.values_list("name", flat=True))
    hint = near(name, known) or listed(known, "there are") or "none is there yet: POST /api/v1/secrets"
    values = ((path, text) for path, text, is_name in _texts(value, field) if not is_name)
    paths = (path for path, text in values if name in references_in(text))
    return FieldError(next(paths, field), f"there is no secret {name}", hint, "unknown_secret")


def _texts(value: Any, field: str) -> Iterator[tuple[str, str, bool]]:
    """Yield the path of each text, the text, and whether it is the name of a field."""
    if isinstance(value, str):
        yield field, value, False
    elif isinstance(value, dict):
        for name, item in value.items():
            yield field, name, True
            yield from _texts(item, f"{field}.{name[:60]}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(item, f"{field}[{number}]")
