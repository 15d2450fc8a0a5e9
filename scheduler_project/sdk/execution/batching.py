"""Bound how many runs are claimed at once; dispatch fills places by the same bound."""

from __future__ import annotations

from ..ledger.interface import BATCH_SECONDS as BATCH_SECONDS
from ..ledger.interface import MAX_HELD

MAX_BATCH = 32


def max_batch(slots: int) -> int:
    """Bound the batches of a worker: a beat lists all of them, the next ones requested, and as many in the spool."""
    return max(1, min(MAX_BATCH, MAX_HELD // (4 * slots)))
