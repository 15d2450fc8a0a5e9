"""Instants as the API spells them: ISO 8601 with an offset, kept in whole milliseconds UTC."""

from datetime import datetime

from jobs.schedules import BadSchedule, Once, parse
from jobs.schedules.kinds import as_text
from jobs.validation.checks import invalid

__all__ = ["as_text", "read"]


def read(value: object, field: str) -> datetime:
    if value is None:
        raise invalid(field, "null is not an instant", "an ISO 8601 instant with its offset", "wrong_type")
    try:
        once = parse({"at": value}, hash_id="")
    except BadSchedule as bad:
        raise invalid(field, bad.detail, bad.hint) from None
    assert isinstance(once, Once)  # noqa: S101 - what else "at" could mean
    return once.at
