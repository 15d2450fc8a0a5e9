"""Read pauses and blackouts for the scheduler's loops, once for each pass: they are few."""

from datetime import datetime

from jobs.suspensions.rules import SuspensionRow, SuspensionSet
from runs.sql import Connection, change, rows


def read_suspensions(connection: Connection, until: datetime) -> SuspensionSet:
    """Return the suspensions that have begun by then; one that is over stays until it is settled."""
    return SuspensionSet(
        tuple(SuspensionRow(*row) for row in rows(connection, "unsettled_suspensions", {"until": until}))
    )


def lock_over_suspension(connection: Connection, suspension: int, now: datetime) -> bool:
    """Lock a suspension that is over, so that nobody prolongs it; False if it is not over, or settled."""
    return bool(rows(connection, "lock_over_suspension", {"suspension": suspension, "now": now}))


def end_suspension(connection: Connection, suspension: int, now: datetime) -> bool:
    """Record the end in the transaction that settled the last of it; False if another session did."""
    return change(connection, "end_suspension", {"suspension": suspension, "now": now}) > 0
