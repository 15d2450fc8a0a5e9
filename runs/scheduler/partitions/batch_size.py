"""Bound how much a pass takes on: half after one that took too long, then slowly more again."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

logger = logging.getLogger(__name__)

MAX_PASS_SECONDS = 1.0
# A statement or a wait for a lock timed out: the transaction is rolled back, the session and its locks are kept.
TIMED_OUT = (errors.QueryCanceled, errors.LockNotAvailable, errors.DeadlockDetected)
# The session is gone.
LOST = (psycopg.OperationalError, psycopg.InterfaceError, errors.IdleInTransactionSessionTimeout)


class BatchSize:
    """The batch size of one kind of pass, kept from session to session."""

    def __init__(self, name: str, most: int) -> None:
        self.name = name
        self.size = self.most = most

    @contextmanager
    def one_pass(self) -> Iterator[None]:
        """Measure a pass. A time-out ends it quietly while less can be taken on, with a single row the session."""
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
            # A pass that computes too long between two statements loses the session, and would lose the next one too.
            self._halve()
            raise
        if time.monotonic() - started > MAX_PASS_SECONDS:
            self._halve()
        elif self.size < self.most:
            self.size = min(self.most, self.size + self.size // 8 + 1)

    def _halve(self) -> None:
        self.size = max(1, self.size // 2)
