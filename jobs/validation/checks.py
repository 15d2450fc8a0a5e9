"""Check parts of a request; each error names the field and what is allowed."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from jobs.errors import MAX_ERRORS, FieldError, InvalidInput, refuse_any

Json = dict[str, Any]
MAX_PAYLOAD_BYTES = 64 * 1024
MAX_DEPTH = 50
MAX_REASON = 500
# Names in a hint: a job has fewer fields.
MAX_LISTED = 16
# Earlier words for fields and parameters.
OTHER_WORDS = {"note": "reason", "n": "limit", "start": "begins_at", "end": "ends_at"}


def refuse_large(value: object, field: str) -> None:
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > MAX_PAYLOAD_BYTES:
        detail = f"{size} bytes are over the limit of {MAX_PAYLOAD_BYTES}"
        raise invalid(field, detail, "store large data elsewhere and pass a reference to it", "too_large")


def unstorable(value: object, field: str = "", depth: int = 0) -> Iterator[FieldError]:
    """Find parts of a parsed JSON text that the database cannot store or that are nested too deeply."""
    if depth > MAX_DEPTH:
        yield FieldError(field[:200], f"nested deeper than {MAX_DEPTH} levels", code="too_deep")
    elif isinstance(value, dict):
        for name, item in value.items():
            below = f"{field}.{printable(name)}".lstrip(".")
            yield from unstorable(name, below, depth + 1)
            yield from unstorable(item, below, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from unstorable(item, f"{field}[{number}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        yield FieldError(field, "the number is too large", code="out_of_range")
    elif isinstance(value, str) and not is_storable(value):
        yield FieldError(field, "the text holds what is no character: NUL, or half a surrogate pair")


def printable(name: str) -> str:
    """Write the name of a field in ASCII, so that any answer and any log can hold it."""
    return name[:60].encode("ascii", "backslashreplace").decode().replace("\x00", "\\0")


def visible(text: str) -> str:
    """Escape what cannot be seen, so that nobody's name begins a line or a colour in a log or on a terminal."""
    return text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]


def is_storable(text: str) -> bool:
    return "\x00" not in text and text.encode("utf-8", "replace").decode() == text


def invalid(field: str, detail: str, hint: str = "", code: str = "invalid") -> InvalidInput:
    return InvalidInput([FieldError(field, detail, hint, code)])


def expect_object(value: object, field: str, known: Iterable[str] | None = None) -> Json:
    """Require an object, and none but the `known` fields in it."""
    if not isinstance(value, dict):
        raise invalid(field, f"{abbreviate(value)} is not an object", "a JSON object {…}", "wrong_type")
    if known is not None:
        refuse_unknown(value, known, field)
    return value


def expect_text(value: object, field: str, noun: str, longest: int) -> str:
    if not isinstance(value, str) or len(value) > longest:
        hint = f"a string of at most {longest} characters"
        raise invalid(field, f"{abbreviate(value)} is not {noun}", hint)
    return value


def read_reason(value: object) -> str:
    return expect_text(value, "reason", "a reason", MAX_REASON)


def refuse_unprintable(text: str, field: str, hint: str = "printable characters") -> None:
    """Refuse characters that cannot be printed. OpenAPI names those of ASCII alone: a pattern knows no others."""
    if not text.isprintable():
        detail = f"{abbreviate(text)} holds characters that cannot be printed"
        raise invalid(field, detail, hint, "unprintable")


def refuse_unknown(given: Mapping[str, object], known: Iterable[str], field: str) -> None:
    known = list(known)
    errors = []
    for name in islice((name for name in given if name not in known), MAX_ERRORS):
        where = f"{field}.{name[:60]}" if field else name[:60]
        other = OTHER_WORDS.get(name)
        hint = near(other if other in known else name, known) or listed(known, "known are")
        errors.append(FieldError(where, f"{abbreviate(name)} is not known", hint, "unknown_field"))
    refuse_any(errors)


def whole_number(value: object, field: str, minimum: int, maximum: int) -> int:
    hint = f"a whole number from {minimum} to {maximum}"
    if isinstance(value, float) and value.is_integer():
        # To JSON Schema 5.0 is whole.
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(field, f"{abbreviate(value)} is not a whole number", hint, "wrong_type")
    if not minimum <= value <= maximum:
        raise invalid(field, f"{abbreviate(value)} is out of range", hint, "out_of_range")
    return value


def near(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name[:200], list(known), n=3, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else ""


def listed(names: Iterable[str], lead: str) -> str:
    names = sorted(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return f"{lead} {', '.join(names[:MAX_LISTED])}{more}" if names else ""


def abbreviate(value: object) -> str:
    """Echo a value of a request in at most 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:59] + "…"
