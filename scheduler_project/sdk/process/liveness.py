"""The detection of a process that hangs, that is, neither goes on nor ends.

Its sign of life in shared memory stays the same while we look at it. Stopped, waiting for a lock, in a loop without
end: from outside these look alike.
"""

from __future__ import annotations

from . import processes

MAX_LOOK_SECONDS = 0.5


class HangDetector:
    """Count for how long a sign of life stands still.

    A look that comes late counts little: what stopped us, a machine that slept or had too much to do, may have stopped
    the other process as well.
    """

    def __init__(self, sign: float = 0.0) -> None:
        self._sign = sign
        self._seconds, self._looked_at = 0.0, processes.boottime()

    def look(self, sign: float) -> float:
        """Return for how many seconds the sign has not changed, of those in which we looked."""
        now = processes.boottime()
        self._seconds += min(now - self._looked_at, MAX_LOOK_SECONDS)
        self._looked_at = now
        if sign != self._sign:
            self._sign, self._seconds = sign, 0.0
        return self._seconds
