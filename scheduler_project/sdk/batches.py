"""How many very short runs are claimed at once. Schedulers hand runs over in places of the same size."""

from __future__ import annotations

from .ledger import MOST_HELD, Lane

# A batch is what one slot carries out in this time.
BATCH_SECONDS = 0.1
MOST_AT_ONCE = 32
WEIGHT_OF_LAST = 0.2
MOST_LANES = 1000


def largest_batch(slots: int) -> int:
    """Of a worker with so many: a beat lists all batches, the next ones asked for, and as many in the spool."""
    return max(1, MOST_HELD // (4 * slots))


class Lengths:
    """How long the runs of each lane have lately taken in this process, and so how many are claimed at once.

    One that took long counts at once, those that did not only bit by bit.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def most(self, lane: Lane) -> int:
        seconds = self._seconds.get((lane.pool_id, lane.tenant_id), BATCH_SECONDS)
        return max(1, min(MOST_AT_ONCE, int(BATCH_SECONDS / seconds)))

    def note(self, lane: Lane, seconds: float) -> None:
        key = (lane.pool_id, lane.tenant_id)
        before = self._seconds.pop(key, seconds)
        if len(self._seconds) >= MOST_LANES:
            self._seconds.clear()
        self._seconds[key] = max(seconds, before + (seconds - before) * WEIGHT_OF_LAST)
