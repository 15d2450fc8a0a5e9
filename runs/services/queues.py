"""Count the runs of queues."""

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from runs.models import Queue
from runs.sql import fetch
from runs.states import LiveState

MAX_COUNTED = 10_000
WAITING = (LiveState.READY, LiveState.QUEUED)


class QueueCounts(NamedTuple):
    # By state.
    runs: dict[str, int]
    oldest_waiting_at: datetime | None


def count_queues(queues: Iterable[Queue]) -> dict[int, QueueCounts]:
    """Count the runs of each queue by one statement, each state up to a bound."""
    counted = {queue.pk: QueueCounts({}, None) for queue in queues}
    for row in fetch("count_queues", queues=list(counted), most=MAX_COUNTED) if counted else ():
        runs, oldest_at = counted[row["id"]]
        runs[row["state"]] = row["runs"]
        if row["state"] in WAITING and row["oldest_at"] is not None:
            oldest_at = min(oldest_at or row["oldest_at"], row["oldest_at"])
        counted[row["id"]] = QueueCounts(runs, oldest_at)
    return counted
