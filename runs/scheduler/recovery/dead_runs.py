"""Report dead runs to the listeners of events, each at least once.

A run dies where its last attempt is reported: in a worker, in the API, in recovery. A database trigger writes its dead
letter in the same transaction, so the dead letters not yet announced are what to report, however the run ended.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from runs.events import DeadRun, RunsDied, emit
from runs.sql import Connection, change, rows
from scheduler_project.sdk.ids import EPOCH

MAX_ANNOUNCED = 500
NO_RUN = UUID(int=0)


@dataclass(slots=True)
class DeadRunRound:
    """The last dead run that was reported in this round, kept from pass to pass.

    What a listener does not accept comes again in the next round, after all that died since.
    """

    died_at: datetime = EPOCH
    run: UUID = NO_RUN


def announce_dead_runs(connection: Connection, last: DeadRunRound) -> int:
    """Report what died and has not been reported yet, and return how many runs that were."""
    values = {"died_at": last.died_at, "run": last.run, "most": MAX_ANNOUNCED}
    dead = [DeadRun(*row) for row in rows(connection, "unannounced_dead_letters", values)]
    # Reported before it is noted: if this process ends in between, its successor reports them again. So does the
    # next round when a listener could not accept them.
    if dead and emit(RunsDied(dead=dead)):
        change(connection, "note_announced", {"runs": [one.run_id for one in dead]})
    whole = len(dead) == MAX_ANNOUNCED
    last.died_at, last.run = (dead[-1].died_at, dead[-1].run_id) if whole else (EPOCH, NO_RUN)
    return len(dead)
