"""Who hangs, that is, neither goes on nor ends: its sign of life in shared memory stays the same while we look at it.

Stopped, waiting for a lock, in a loop without end: from outside they are one.
"""

from __future__ import annotations

from . import processes

LONGEST_LOOK_SECONDS = 0.5


class Stillness:
    """A look that comes late counts little: what stopped us, a machine that slept or had too much to do, may have
    stopped the other as well."""

    def __init__(self, sign: float = 0.0) -> None:
        self._sign = sign
        self._seconds, self._looked_at = 0.0, processes.boottime()

    def look(self, sign: float) -> float:
        """For how many seconds it has not changed, of those in which we looked."""
        now = processes.boottime()
        self._seconds += min(now - self._looked_at, LONGEST_LOOK_SECONDS)
        self._looked_at = now
        if sign != self._sign:
            self._sign, self._seconds = sign, 0.0
        return self._seconds
