"""Check single options of a declared job, and write them as the API reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from .durations import seconds_of


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
    number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if number <= 0:
        raise InvalidDeclaration(f"{option}={value!r} is not above zero.")
    return number


def instant(value: datetime | str, option: str = "at") -> str:
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    except ValueError:
        raise InvalidDeclaration(f"{option}={value!r} is no instant such as 2027-01-31T12:00:00Z.") from None
    if at.tzinfo is None:
        raise InvalidDeclaration(f"{option}={value!s} has no timezone.")
    return at.isoformat()


def one_of(option: str, known: Sequence[str], value: str | None) -> str | None:
    if value is not None and value not in known:
        raise InvalidDeclaration(f"{option}={value!r} is none of {', '.join(known)}.")
    return value


def refuse_unknown(option: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise InvalidDeclaration(f"{option}[{unknown[0]!r}] is not known; {', '.join(known)} are.")
