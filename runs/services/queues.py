"""Count the runs of queues."""

from collections.abc import Sequence
from typing import Any

from runs.models import Queue
from runs.sql import fetch
from runs.states import LiveState

MAX_COUNTED = 10_000
WAITING = (LiveState.READY, LiveState.QUEUED)


def note_counts(queues: Sequence[Queue]) -> None:
    """Note on each queue how many runs it has, by one statement, each state up to a bound."""
    rows: dict[int, list[dict[str, Any]]] = {queue.pk: [] for queue in queues}
    for row in fetch("count_queues", queues=list(rows), most=MAX_COUNTED) if rows else ():
        rows[row["id"]].append(row)
    for queue in queues:
        own = rows[queue.pk]
        since = [row["oldest_at"] for row in own if row["state"] in WAITING and row["oldest_at"]]
        queue.runs_by_state = {row["state"]: row["runs"] for row in own}
        queue.oldest_waiting_at = min(since, default=None)
