"""Let through so many requests a minute, counted over all server processes, mostly without a statement.

A process takes requests of a limit in batches from the minute's row in PostgreSQL, and spends them from memory until
the minute is over. The row only counts up, so no request is given to two processes; what a process has not spent by the
end of the minute, or when it ends, nobody gets.
"""

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from django.db import Error, connection

from jobs.errors import DomainError
from scheduler_project.sdk.process.processes import boottime

logger = logging.getLogger(__name__)

SECONDS = 60
# The first batch of a minute is this part of the limit. Each further one is twice as large as the one before, so that a
# process holds little more than it has spent, but at most a tenth of what is left.
FIRST_PART, LARGEST_PART = 100, 10
MAX_HELD = 10_000
# Rows are locked in the order of the subjects. A minute that ends while the statement waits for a row stays the minute
# of its requests.
TAKE = """
INSERT INTO beatkeeper_allowance AS allowance (minute, subject, taken)
SELECT date_trunc('minute', clock_timestamp()), batch.subject, batch.size
FROM unnest(%s::text[], %s::bigint[]) AS batch (subject, size)
ON CONFLICT (minute, subject) DO UPDATE SET taken = allowance.taken + excluded.taken
RETURNING subject, minute, taken, extract(epoch FROM minute + interval '1 minute' - clock_timestamp())::float8
"""


class Limit(NamedTuple):
    # As the header RateLimit calls it.
    name: str
    # Whose requests are counted together: the key of the row.
    subject: str
    per_minute: int
    # What the refusal says when no request is left.
    exceeded: str


class Standing(NamedTuple):
    """How many requests of a limit are left, as far as this process knows, and for how many seconds."""

    limit: Limit
    left: int
    seconds: int


class LimitExceeded(DomainError, code="throttled"):
    """More requests came within a minute than are let through."""

    def __init__(self, standing: Standing) -> None:
        super().__init__(standing.limit.exceeded, hint=f"try again in {standing.seconds} s")
        self.standing = standing


@dataclass(slots=True)
class Held:
    """What a process has of a limit in one minute."""

    minute: datetime
    # By the clock of `boottime`, and rather too early: reckoned from when the database was asked.
    ends: float
    left: int
    # How many requests no process had taken when this one last did.
    untaken: int
    size: int

    def standing(self, limit: Limit, now: float) -> Standing:
        return Standing(limit, self.left + self.untaken, max(1, math.ceil(self.ends - now)))


def next_size(limit: Limit, held: Held | None) -> int:
    if held is None:
        return max(1, limit.per_minute // FIRST_PART)
    return max(1, min(2 * held.size, held.untaken // LARGEST_PART))


class Limiter:
    """Hold what this process has of each limit. No lock is held while the database is asked.

    So a request waits for its own statement alone. Threads that ask at once for the same limit get a batch each.
    """

    def __init__(self, max_held: int = MAX_HELD) -> None:
        self._lock = threading.Lock()
        self._max_held = max_held
        # Oldest minutes first.
        self._held: dict[str, Held] = {}

    def spend(self, limits: Sequence[Limit]) -> list[Standing]:
        """Count one request against all of the limits, or raise LimitExceeded and count it against none.

        All callers give limits in the same order, in which their rows are locked.
        """
        # Another thread may spend what this one took, or its minute end on the way: then it takes once more.
        while lacking := self._spend_held(limits):
            if not self._take(lacking):
                return []
        now = boottime()
        with self._lock:
            return [held.standing(limit, now) for limit in limits if (held := self._held.get(limit.subject))]

    def forget(self) -> None:
        """Drop what is held; it is lost to all processes."""
        with self._lock:
            self._held.clear()

    def _spend_held(self, limits: Sequence[Limit]) -> dict[Limit, int]:
        """Spend one request of each limit from memory, or none if some need a batch: return those with its size."""
        now, spent, lacking = boottime(), list[Held](), dict[Limit, int]()
        with self._lock:
            for limit in limits:
                held = self._held.get(limit.subject)
                if held and held.ends <= now:
                    held = None
                if held and held.left:
                    spent.append(held)
                elif held and not held.untaken:
                    raise LimitExceeded(held.standing(limit, now))
                else:
                    lacking[limit] = next_size(limit, held)
            if not lacking:
                for held in spent:
                    held.left -= 1
        return lacking

    def _take(self, batches: dict[Limit, int]) -> bool:
        """Take a batch of each limit; return False if it cannot be counted.

        If the database is away, the request's own statements find out: the limit alone is no reason to refuse it.
        """
        asked = boottime()
        try:
            with connection.cursor() as cursor:
                cursor.execute(TAKE, [[limit.subject for limit in batches], list(batches.values())])
                rows = {subject: row for subject, *row in cursor.fetchall()}
        except Error:
            logger.warning("a request is let through uncounted", exc_info=True)
            return False
        for limit, size in batches.items():
            minute, taken, seconds = rows[limit.subject]
            granted = min(size, max(0, limit.per_minute - (taken - size)))
            untaken = max(0, limit.per_minute - taken)
            self._keep(limit.subject, Held(minute, asked + seconds, granted, untaken, size))
        return True

    def _keep(self, subject: str, new: Held) -> None:
        with self._lock:
            held = self._held.get(subject)
            if held and held.minute == new.minute:
                held.left += new.left
                held.untaken = min(held.untaken, new.untaken)
                held.size = new.size
                # Neither is later than the end of the minute.
                held.ends = max(held.ends, new.ends)
                return
            self._held.pop(subject, None)
            self._held[subject] = new
            if len(self._held) > self._max_held:
                del self._held[next(iter(self._held))]
