"""`${secret:NAME}` in the strings of a target or an input: found, and replaced by what it stands for.

`$${secret:` is the text `${secret:` itself. Everything else that has a dollar in it is left as it is. What replaces
a reference is not read again: a secret that looks like a reference is no reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

LEAD = "${secret:"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,59}")
FOUND = re.compile(r"(?P<escape>\$?)\$\{secret:(?P<name>[^{}]*)(?P<end>\}?)")


class SecretMissing(Exception):
    """The run needs a secret that its tenant does not have."""


class SecretUnreadable(Exception):
    """The secret is there, and this process cannot decrypt it."""


def strings_in(value: Any) -> Iterator[str]:
    """The values, at any depth. Names of an object are none: nothing is replaced in them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)


def references_in(text: str) -> Iterator[str]:
    """The name as it is written, also one that cannot be; an empty one for a reference without an end."""
    if LEAD in text:
        for found in FOUND.finditer(text):
            if not found["escape"]:
                yield found["name"] if found["end"] else ""


def names_in(*values: Any) -> list[str]:
    return sorted({name for value in values for text in strings_in(value) for name in references_in(text)})


def resolved_target(target: dict[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
    """In a URL a secret is one value of its path or query, whatever characters it has."""
    return {
        name: resolved(item, secrets, _as_part_of_url if name == "url" else str)
        for name, item in target.items()
    }


def resolved(value: Any, secrets: Mapping[str, str], written: Callable[[str], str] = str) -> Any:
    """A copy with every reference replaced by the secret, as it is `written` there."""
    if isinstance(value, str):
        return _resolved_text(value, secrets, written) if LEAD in value else value
    if isinstance(value, dict):
        return {name: resolved(item, secrets, written) for name, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, secrets, written) for item in value]
    return value


def _resolved_text(text: str, secrets: Mapping[str, str], written: Callable[[str], str]) -> str:
    def put(found: re.Match[str]) -> str:
        if found["escape"]:
            return found[0][1:]
        if found["name"] not in secrets:
            raise SecretMissing(f"There is no secret {found['name'][:60]}")
        return written(secrets[found["name"]])

    return FOUND.sub(put, text)


def defused(value: Any, names: Collection[str]) -> Any:
    """A copy in which what refers to any other secret is no reference, but that text itself."""
    if isinstance(value, str):
        return FOUND.sub(lambda found: _only_of(found, names), value) if LEAD in value else value
    if isinstance(value, dict):
        return {name: defused(item, names) for name, item in value.items()}
    if isinstance(value, list):
        return [defused(item, names) for item in value]
    return value


def _only_of(found: re.Match[str], names: Collection[str]) -> str:
    return found[0] if found["escape"] or (found["end"] and found["name"] in names) else f"${found[0]}"


def restored(value: Any, secrets: Mapping[str, str]) -> Any:
    """The other way round, for what is kept of what a body was given: each secret is its reference again."""
    if isinstance(value, str):
        names = {secret: name for name, secret in secrets.items()}
        longest_first = sorted(names, key=len, reverse=True)
        pattern = "|".join(map(re.escape, [*longest_first, LEAD]))
        return re.sub(pattern, lambda found: _reference_to(names.get(found[0])), value)
    if isinstance(value, dict):
        return {name: restored(item, secrets) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [restored(item, secrets) for item in value]
    return value


def _reference_to(name: str | None) -> str:
    """None: to nothing, it is the text itself."""
    return f"${LEAD}" if name is None else f"{LEAD}{name}}}"


def _as_part_of_url(secret: str) -> str:
    return quote(secret, safe="")
