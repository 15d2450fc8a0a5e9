"""Checks that every part of a request needs; each refusal names the field and says what is allowed."""

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from jobs.refusals import MOST_ERRORS, FieldError, InvalidInput

Json = dict[str, Any]
MAX_PAYLOAD_BYTES = 64 * 1024


def refuse_large(value: object, field: str) -> None:
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise refused(
            field,
            f"{size} bytes are over the limit of {MAX_PAYLOAD_BYTES}",
            "store large data elsewhere and pass a reference to it",
            "too_large",
        )


def refused(field: str, detail: str, hint: str = "", code: str = "invalid") -> InvalidInput:
    return InvalidInput([FieldError(field, detail, hint, code)])


def expect_object(value: object, field: str) -> Json:
    if not isinstance(value, dict):
        raise refused(field, f"{shown(value)} is not an object", "a JSON object {…}", "wrong_type")
    return value


def refuse_unknown(given: Mapping[str, object], known: Iterable[str], field: str) -> None:
    known = list(known)
    unknown = islice((name for name in given if name not in known), MOST_ERRORS)
    errors = [
        FieldError(
            f"{field}.{name[:60]}" if field else name[:60],
            f"{shown(name)} is not known",
            near(name, known) or listed(known, "known are"),
            "unknown_field",
        )
        for name in unknown
    ]
    if errors:
        raise InvalidInput(errors)


def near(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name[:200], list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else ""


def listed(names: Iterable[str], lead: str) -> str:
    names = sorted(names)
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"{lead} {', '.join(names[:12])}{more}" if names else ""


def shown(value: object) -> str:
    """A short echo of what came in."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"
