"""Check single options of a declared job, and write them as the API reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from math import inf
from typing import Any

from .durations import seconds_of

# Classes of lazy translations by their names: Django's, Flask-Babel's and Babel's. None of them is imported here.
LAZY = {"Promise", "LazyString", "LazyProxy"}


class InvalidDeclaration(ValueError):
    """A job cannot be declared like this."""


def seconds(option: str, value: Any) -> float | str | None:
    """Accept a number, a timedelta, or an ISO 8601 duration, which the platform reads."""
    if value is None:
        return None
    if isinstance(value, str):
        if seconds_of(value) is None:
            raise InvalidDeclaration(f"{option}={value!r} is no ISO 8601 duration such as PT30S.")
        return value
    try:
        number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        raise InvalidDeclaration(
            f"{option}={value!r} is no number of seconds, no timedelta and no ISO 8601 duration."
        ) from None
    # NaN is not within any bounds.
    if not 0 < number < inf:
        raise InvalidDeclaration(f"{option}={value!r} is not above zero.")
    return number


def instant(value: datetime | str, option: str = "at") -> str:
    at = _moment(value, option)
    if at.tzinfo is None:
        raise InvalidDeclaration(f"{option}={value!s} has no timezone.")
    return at.isoformat()


def local_time(at: datetime | str) -> str:
    """Accept what the clock of a zone shows, in whole seconds; the zone stands beside it."""
    local = _moment(at, "at")
    if local.tzinfo is not None:
        raise InvalidDeclaration(
            f"at={at!s} has an offset or zone of its own, and timezone stands beside it."
        )
    if local.microsecond:
        raise InvalidDeclaration(f"at={at!s} has a fraction of a second.")
    return local.isoformat()


def _moment(value: datetime | str, option: str) -> datetime:
    try:
        return datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    except ValueError:
        raise InvalidDeclaration(f"{option}={value!r} is no instant such as 2027-01-31T12:00:00Z.") from None


def one_of(option: str, known: Sequence[str], value: str | None) -> str | None:
    if value is not None and value not in known:
        raise InvalidDeclaration(f"{option}={value!r} is none of {', '.join(known)}.")
    return value


def refuse_unknown(option: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise InvalidDeclaration(f"{option}[{unknown[0]!r}] is not known; {', '.join(known)} are.")


def as_json(option: str, value: Any) -> Any:
    """Return a value as it is after JSON has carried it; refuse what JSON cannot carry."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidDeclaration(f"{option} cannot be written as JSON: {error}") from None


def with_texts(value: Any, text: Callable[[Any], str]) -> Any:
    """Put texts in the place of lazy translations, however deep in dicts and lists."""
    # The class itself is looked at: isinstance would evaluate some of them.
    if any(kind.__name__ in LAZY for kind in type(value).__mro__):
        return text(value)
    if isinstance(value, Mapping):
        return {key: with_texts(inner, text) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_texts(inner, text) for inner in value]
    return value


def text_of(lazy: Any) -> str:
    """Evaluate a lazy translation in a thread of its own: in no request's language, so it is the same at each call."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(str, lazy).result()
