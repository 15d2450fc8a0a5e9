"""How many very short runs are claimed at once. Schedulers place runs into queues in portions of the same size."""

from __future__ import annotations

from ..ledger.interface import MAX_HELD, WorkQueue
from ..shared.slot_record import BATCH_SECONDS as BATCH_SECONDS

MAX_BATCH = 32
WEIGHT_OF_LAST = 0.2
MAX_QUEUES = 1000


def max_batch(slots: int) -> int:
    """Bound the batches of a worker: a beat lists all of them, the next ones requested, and as many in the spool."""
    return max(1, MAX_HELD // (4 * slots))


class RunLengths:
    """How long the runs of each queue took recently in this process.

    One that took long counts at once; short ones count bit by bit.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def batch_size(self, queue: WorkQueue) -> int:
        seconds = self._seconds.get((queue.pool_id, queue.tenant_id), BATCH_SECONDS)
        return max(1, min(MAX_BATCH, int(BATCH_SECONDS / seconds)))

    def note(self, queue: WorkQueue, seconds: float) -> None:
        key = (queue.pool_id, queue.tenant_id)
        before = self._seconds.pop(key, seconds)
        if len(self._seconds) >= MAX_QUEUES:
            self._seconds.clear()
        self._seconds[key] = max(seconds, before + (seconds - before) * WEIGHT_OF_LAST)
