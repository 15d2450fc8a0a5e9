"""Measure how far this machine's clock is from the database's, the only clock that decides anything."""

from __future__ import annotations

import time
from datetime import datetime

# More than this misleads people in log lines, in the admin and in a shell.
LIMIT_MS = 2000.0
# Ten years: a clock cannot be further away.
MAX_SKEW_MS = 10 * 365 * 86_400_000.0
# The database's time lies somewhere in the round trip, so a long one says nothing.
MAX_ROUND_TRIP = 1.0


class RoundTrip:
    """Begin right before the database's time is requested, and end with its answer."""

    def __init__(self) -> None:
        self._wall, self._began = time.time(), time.monotonic()

    def skew_ms(self, theirs: datetime) -> float | None:
        """Return the skew at the midpoint, positive when this machine is ahead; None when the answer came too late."""
        took = time.monotonic() - self._began
        if took > MAX_ROUND_TRIP:
            return None
        return 1000 * (self._wall + took / 2 - theirs.timestamp())


def describe(skew_ms: float) -> str:
    seconds = abs(skew_ms) / 1000
    units = [(7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 0.001, "ms")]
    size, unit = next((seconds / one, name) for least, one, name in units if seconds >= least)
    length = f"{size:.1f} {unit}" if unit in ("h", "s") else f"{size:.0f} {unit}"
    return f"{length} {'ahead of' if skew_ms > 0 else 'behind'} the database's"
