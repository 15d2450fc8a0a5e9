"""Read and write lengths of time as the API spells them: ISO 8601 (`PT30S`) or plain seconds."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from jobs.errors import FieldError, InvalidInput
from jobs.validation.checks import abbreviate
from scheduler_project.sdk.declarations.durations import seconds_of


def read(value: object, field: str, minimum: timedelta, maximum: timedelta) -> timedelta:
    hint = f"seconds, or an ISO 8601 duration such as PT30S; from {as_text(minimum)} to {as_text(maximum)}"
    length = _length(value)
    if length is None:
        raise InvalidInput([FieldError(field, f"{abbreviate(value)} is not a duration", hint)])
    if not minimum <= length <= maximum:
        raise InvalidInput([FieldError(field, f"{abbreviate(value)} is out of range", hint, "out_of_range")])
    return length


def as_text(length: timedelta) -> str:
    """Spell a length of time the shortest usual way: P1D, PT1H30M, PT0.5S."""
    days, rest = divmod(length, timedelta(days=1))
    hours, rest = divmod(rest, timedelta(hours=1))
    minutes, rest = divmod(rest, timedelta(minutes=1))
    seconds = f"{rest.total_seconds():.3f}".rstrip("0").rstrip(".")
    parts = [(str(hours), "H"), (str(minutes), "M"), (seconds, "S")]
    time = "".join(number + unit for number, unit in parts if number != "0")
    text = "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")
    return "PT0S" if text == "P" else text


def with_texts(stored: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Spell the lengths of these names, which are stored in seconds, as far as there are any."""
    return {**stored, **{name: as_text(timedelta(seconds=stored[name])) for name in names if name in stored}}


def _length(value: object) -> timedelta | None:
    if isinstance(value, str):
        seconds = seconds_of(value)
        return None if seconds is None else _seconds(float(seconds))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _seconds(value)
    return None


def _seconds(seconds: float) -> timedelta:
    # A century is beyond every limit here, and far from what a timedelta cannot hold.
    bounded = max(min(seconds, 100 * 366 * 86_400), -1)
    return timedelta(milliseconds=round(bounded * 1000))
