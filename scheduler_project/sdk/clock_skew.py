"""How far this machine's clock is from the database's, which is the only clock that decides anything."""

from __future__ import annotations

import time
from datetime import datetime

# Above it people are misled: log lines, the admin in a browser, `date` in a shell.
LIMIT_MS = 2000.0
# Ten years: what is said to be further away is no clock.
FARTHEST_MS = 10 * 365 * 86_400_000.0
# The answer lies somewhere in the round trip: from a long one nothing is learnt.
LONGEST_ROUND_TRIP = 1.0


class RoundTrip:
    """Begun just before the database is asked for its time, and closed by its answer."""

    def __init__(self) -> None:
        self._wall, self._began = time.time(), time.monotonic()

    def skew_ms(self, theirs: datetime) -> float | None:
        """Positive when this machine is ahead, taken from the midpoint; None when the answer came too late."""
        took = time.monotonic() - self._began
        if took > LONGEST_ROUND_TRIP:
            return None
        return 1000 * (self._wall + took / 2 - theirs.timestamp())


def in_words(skew_ms: float) -> str:
    seconds = abs(skew_ms) / 1000
    units = [(7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s"), (0.0, 0.001, "ms")]
    size, unit = next((seconds / one, name) for least, one, name in units if seconds >= least)
    length = f"{size:.1f} {unit}" if unit in ("h", "s") else f"{size:.0f} {unit}"
    return f"{length} {'ahead of' if skew_ms > 0 else 'behind'} the database's"
