"""Find `${secret:NAME}` in the strings of a target or an input, and replace it by the secret.

`$${secret:` is the text `${secret:` itself; other dollars stay. A replacement is not read again: a secret that looks
like a reference is no reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

LEAD = "${secret:"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
FOUND = re.compile(r"(?P<escape>\$?)\$\{secret:(?P<name>[^{}]*)(?P<end>\}?)")


class SecretMissing(Exception):
    """The run needs a secret that its tenant does not have."""


class SecretUnreadable(Exception):
    """The secret exists, and this process cannot decrypt it."""


def strings_in(value: Any) -> Iterator[str]:
    """Yield the strings at any depth, without the names of objects: nothing is replaced in them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def references_in(text: str) -> Iterator[str]:
    """Yield the names as written, also invalid ones, and an empty one for a reference without an end."""
    if LEAD in text:
        for found in FOUND.finditer(text):
            if not found["escape"]:
                yield found["name"] if found["end"] else ""


def names_in(*values: Any) -> list[str]:
    return sorted({name for value in values for text in strings_in(value) for name in references_in(text)})


def resolved_target(target: dict[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """Replace the references; in a URL the secret is quoted, so that it is one value of its path or query."""
    return {
        name: resolved(item, secrets, partial(quote, safe="") if name == "url" else str)
        for name, item in target.items()
    }


def resolved(value: Any, secrets: Mapping[str, str], written: Callable[[str], str] = str) -> Any:
    """Copy the value with every reference replaced by the secret, in the form that `written` returns."""

    def put(found: re.Match[str]) -> str:
        if found["escape"]:
            return found[0][1:]
        if found["name"] not in secrets:
            raise SecretMissing(f"There is no secret {found['name'][:60]}")
        return written(secrets[found["name"]])

    return _with_strings(value, partial(FOUND.sub, put))


def without_other_references(value: Any, names: Collection[str]) -> Any:
    """Copy the value with references to any other secret escaped, so that they are plain text."""

    def escape_others(found: re.Match[str]) -> str:
        stays = found["escape"] or (found["end"] and found["name"] in names)
        return found[0] if stays else f"${found[0]}"

    return _with_strings(value, partial(FOUND.sub, escape_others))


def with_references(value: Any, secrets: Mapping[str, str]) -> Any:
    """Copy the value with each secret replaced by its reference, for storing what a body was given."""
    references = {secret: f"{LEAD}{name}}}" for name, secret in secrets.items()}
    longest_first = sorted(references, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, [*longest_first, LEAD])))
    # What is no secret is the text `${secret:` itself, which is escaped.
    return _with_strings(value, partial(pattern.sub, lambda found: references.get(found[0], f"${LEAD}")))


def _with_strings(value: Any, changed: Callable[[str], str]) -> Any:
    """Copy the value with its strings changed at any depth, and the names of objects as they are."""
    if isinstance(value, str):
        return changed(value)
    if isinstance(value, dict):
        return {name: _with_strings(item, changed) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_strings(item, changed) for item in value]
    return value
