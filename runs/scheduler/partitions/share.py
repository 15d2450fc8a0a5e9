"""The base of every loop that shares its work with those of other schedulers."""

import time
from collections.abc import Iterable
from datetime import datetime

from runs.scheduler.observer import FinishedPass, PassKind, PassResult
from runs.scheduler.partitions.lock_session import LockSession, refuse_other_session
from runs.scheduler.partitions.slices import SliceSet
from runs.sql import rows

# Slices that a leaving scheduler gives back are taken over within this time.
BALANCE_SECONDS = 0.25


class SliceHolder:
    """A share of the slices of one kind, balanced from time to time."""

    def __init__(self, session: LockSession, kind: int, universe: Iterable[int]) -> None:
        self.session = session
        self.slices = SliceSet(session, kind, universe)
        # The passes of the step under way, for the observers of the loop.
        self.finished: list[FinishedPass] = []
        self._balanced_at = 0.0

    def balance(self) -> bool:
        """Return whether the slices held have changed."""
        if time.monotonic() - self._balanced_at < BALANCE_SECONDS:
            return False
        before = set(self.slices.held)
        self._read_universe()
        self.slices.balance()
        self._balanced_at = time.monotonic()
        return before != self.slices.held

    def _read_universe(self) -> None:
        """Read which slices there are, for kinds whose universe changes."""

    def holds(self) -> int:
        return len(self.slices.held)

    def end(self) -> None:
        """Do nothing: what is half done was rolled back, and the slices go with the session."""

    def finish_pass(self, kind: PassKind, result: PassResult, began: float) -> None:
        self.finished.append(FinishedPass(kind, result.counts(), time.monotonic() - began))

    def now(self) -> datetime:
        """Read the database's time and make sure that this is still the session which took the locks."""
        pid, now = rows(self.session.connection, "session_and_time")[0]
        refuse_other_session(pid, self.session.pid)
        return now  # type: ignore[no-any-return]
