"""Instants as the API spells them: ISO 8601 with an offset, kept in whole milliseconds UTC."""

from datetime import datetime

from jobs.schedules.kinds import as_text
from jobs.schedules.parsing import read_instant
from jobs.validation.checks import invalid

__all__ = ["as_text", "read"]


def read(value: object, field: str) -> datetime:
    if value is None:
        raise invalid(field, "null is not an instant", "an ISO 8601 instant with its offset", "wrong_type")
    return read_instant(value, field)
