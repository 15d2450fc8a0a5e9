"""Checks that every part of a request needs; each refusal names the field and says what is allowed."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from jobs.refusals import MOST_ERRORS, FieldError, InvalidInput

Json = dict[str, Any]
MAX_PAYLOAD_BYTES = 64 * 1024
DEEPEST = 50


def refuse_large(value: object, field: str) -> None:
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > MAX_PAYLOAD_BYTES:
        raise refused(
            field,
            f"{size} bytes are over the limit of {MAX_PAYLOAD_BYTES}",
            "store large data elsewhere and pass a reference to it",
            "too_large",
        )


def unstorable(value: object, field: str = "", depth: int = 0) -> Iterator[FieldError]:
    """What of a parsed JSON text the database could not keep, or no reader of it could follow."""
    if depth > DEEPEST:
        yield FieldError(field[:200], f"nested deeper than {DEEPEST} levels", code="too_deep")
    elif isinstance(value, dict):
        for name, item in value.items():
            below = f"{field}.{_printable(name)}".lstrip(".")
            yield from unstorable(name, below, depth + 1)
            yield from unstorable(item, below, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from unstorable(item, f"{field}[{number}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield FieldError(field, "the number is too large", code="out_of_range")
    elif isinstance(value, str) and ("\x00" in value or not _is_text(value)):
        yield FieldError(field, "the text holds what is no character: NUL, or half a surrogate pair")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(name: str) -> str:
    return name[:60].encode("ascii", "backslashreplace").decode().replace("\x00", "\\0")


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


def whole_number(value: object, field: str, minimum: int, maximum: int) -> int:
    hint = f"a whole number from {minimum} to {maximum}"
    if not isinstance(value, int) or isinstance(value, bool):
        raise refused(field, f"{shown(value)} is not a whole number", hint, "wrong_type")
    if not minimum <= value <= maximum:
        raise refused(field, f"{shown(value)} is out of range", hint, "out_of_range")
    return value


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
