"""What every loop that shares its work with those of other schedulers is made of."""

import time
from collections.abc import Iterable
from datetime import datetime

from runs.queries import rows
from runs.slices import LockSession, LostLocks, SliceSet

# What a scheduler that leaves gives back is taken over within so long.
BALANCE_SECONDS = 0.25


class Holding:
    """A share of the slices of one kind, balanced from time to time."""

    def __init__(self, session: LockSession, kind: int, universe: Iterable[int]) -> None:
        self.session = session
        self.slices = SliceSet(session, kind, universe)
        self._balanced_at = 0.0

    def balance(self) -> bool:
        """Whether the slices held are others than before."""
        if time.monotonic() - self._balanced_at < BALANCE_SECONDS:
            return False
        before = set(self.slices.held)
        self._look_around()
        self.slices.balance()
        self._balanced_at = time.monotonic()
        return before != self.slices.held

    def _look_around(self) -> None:
        """For kinds whose universe changes."""

    def holds(self) -> int:
        return len(self.slices.held)

    def end(self) -> None:
        """Nothing: what is half done was rolled back, and the slices go with the session."""

    def now(self) -> datetime:
        pid, now = rows(self.session.connection, "session_and_time")[0]
        if pid != self.session.pid:
            raise LostLocks(LostLocks.__doc__)
        return now  # type: ignore[no-any-return]
