"""How much a pass takes on: half after one that took too long, slowly more again. No pass is without a bound."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

logger = logging.getLogger(__name__)

LONGEST_PASS_SECONDS = 1.0
# Of a statement or a wait for a lock; the transaction is rolled back, the session and its locks are kept.
TIMED_OUT = (errors.QueryCanceled, errors.LockNotAvailable, errors.DeadlockDetected)
# The session is gone.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.IdleInTransactionSessionTimeout)


class Pace:
    """Kept from session to session by whoever makes the passes."""

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.most = most
        self.size = most

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """A time-out ends the pass quietly while less can be taken on; of a single row it is the session's end."""
        started = time.monotonic()
        try:
            yield
        except TIMED_OUT as error:
            if self.size == 1:
                raise
            logger.warning("%s: %s, so a pass takes on less", self.name, type(error).__name__)
            self._halve()
            return
        except LOST:
            # Whoever reckons for too long between two statements loses the session, and would with the next one too.
            self._halve()
            raise
        if time.monotonic() - started > LONGEST_PASS_SECONDS:
            self._halve()
        elif self.size < self.most:
            self.size = min(self.most, self.size + self.size // 8 + 1)

    def _halve(self) -> None:
        self.size = max(1, self.size // 2)
