"""Pauses and blackouts as the scheduler's loops read them, once for each pass: they are few."""

from datetime import datetime

from jobs.stop_rules import StopRow, Stops
from runs.queries import Connection, change, rows

__all__ = ["StopRow", "Stops", "end_stop", "lock_over_stop", "read_stops"]


def read_stops(connection: Connection, until: datetime) -> Stops:
    """Those that have begun by then. One that is over stays until what it held back is settled."""
    return Stops(tuple(StopRow(*row) for row in rows(connection, "unsettled_stops", {"until": until})))


def lock_over_stop(connection: Connection, stop: int, now: datetime) -> bool:
    """Before what it held back is settled: nobody makes it longer meanwhile. False: it is not over, or settled."""
    return bool(rows(connection, "lock_over_stop", {"stop": stop, "now": now}))


def end_stop(connection: Connection, stop: int, now: datetime) -> bool:
    """Tells the audit trail, in the transaction that settled the last of what it held back. False: somebody did."""
    return change(connection, "end_stop", {"stop": stop, "now": now}) > 0
