"""Report dead runs to the listeners of events, each at least once.

A run dies where its last attempt is reported: in a worker, in the API, in recovery. A database trigger writes its dead
letter in the same transaction, so the letters not yet announced are what to report, however the run ended.
"""

from runs.events import DeadRun, RunsDied, emit
from runs.sql import Connection, change, rows

MAX_ANNOUNCED = 500


def announce_dead_runs(connection: Connection) -> int:
    """Report what died and has not been reported yet, and return how many runs that were."""
    dead = [DeadRun(*row) for row in rows(connection, "unannounced_letters", {"most": MAX_ANNOUNCED})]
    if dead:
        # Reported before it is noted: if this process ends in between, its successor reports them again. So does
        # the next pass when a listener could not accept them.
        if emit(RunsDied(dead=dead)):
            change(connection, "note_announced", {"runs": [one.run_id for one in dead]})
    return len(dead)
