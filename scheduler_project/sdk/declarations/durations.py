"""Read ISO 8601 durations of fixed length, such as PT30S or P1DT12H. Declarations and the platform share the rule."""

from __future__ import annotations

import re
from decimal import Decimal

DURATION = re.compile(
    r"P(?:([0-9]{1,9})W)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)S)?)?"
)


def seconds_of(text: str) -> Decimal | None:
    """Return the seconds that a duration lasts, or None if the text is no duration."""
    match = DURATION.fullmatch(text)
    if not match or not any(match.groups()):
        return None
    weeks, days, hours, minutes, seconds = (Decimal(group or 0) for group in match.groups())
    return ((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60 + seconds
