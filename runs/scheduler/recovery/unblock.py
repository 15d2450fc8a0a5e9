"""Release blocked runs whose reason is gone: reason by reason, job by job, at least every SWEEP_SECONDS.

What ends a reason, a report above all, releases most runs; this finds the others. However many are blocked, a pass
ends after its time, and the next one goes on where it stopped.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from runs import transitions
from runs.reasons import BLOCKED, Reason
from runs.scheduler.trigger import overlap
from runs.sql import Connection, rows

SWEEP_SECONDS = 2.0
MAX_LOOK_SECONDS = 0.2
MAX_JOBS = 200
NO_JOB = UUID(int=0)


@dataclass(slots=True)
class Sweep:
    """The job that each unfinished round has come to, by reason."""

    rounds: dict[str, UUID] = field(default_factory=dict)

    def begin(self) -> None:
        for reason in BLOCKED:
            self.rounds.setdefault(reason, NO_JOB)


def sweep_blocked(connection: Connection, sweep: Sweep, now: datetime, most: int) -> int:
    """Release a batch of each reason in turn until all rounds, or the time, are over; return how many runs went."""
    until = time.monotonic() + MAX_LOOK_SECONDS
    released = 0
    while sweep.rounds:
        for reason, after in list(sweep.rounds.items()):
            released += _look_at(connection, sweep, reason, after, now, most)
            if time.monotonic() >= until:
                if reason in sweep.rounds:  # the others come first next time
                    sweep.rounds[reason] = sweep.rounds.pop(reason)
                return released
    return released


def _look_at(connection: Connection, sweep: Sweep, reason: str, after: UUID, now: datetime, most: int) -> int:
    values = {"reason": reason, "after": after, "most": MAX_JOBS}
    jobs = [job for (job,) in rows(connection, "jobs_blocked_for", values)]
    released = release(connection, reason, jobs, now, most) if jobs else 0
    if released >= most:
        return released  # these jobs have more of them
    if len(jobs) == MAX_JOBS:
        sweep.rounds[reason] = jobs[-1]
    else:
        del sweep.rounds[reason]
    return released


def release(connection: Connection, reason: str, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    if reason == Reason.OVERLAP:
        return _release_waiting(connection, jobs)
    if reason == Reason.BREAKER:
        return _release_broken(connection, jobs, now, most)
    return transitions.release_blocked(connection, reason, jobs, now, most)


def _release_waiting(connection: Connection, jobs: Sequence[UUID]) -> int:
    """Skip jobs whose gate is locked: its holder releases, or the next round does."""
    alone = [job for (job,) in rows(connection, "jobs_without_others", {"jobs": list(jobs)})]
    if not alone:
        return 0
    with connection.transaction():
        busy = overlap.lock_gates(connection, dict.fromkeys(alone, True))
        return transitions.release_waiting(connection, [job for job in alone if job not in busy])


def _release_broken(connection: Connection, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    """Release the probe of breakers that have cooled down, and all runs of those that are closed by now."""
    with connection.transaction():
        busy = overlap.lock_gates(connection, dict.fromkeys(jobs, True))
        free = [job for job in jobs if job not in busy]
        transitions.begin_probes(connection, free, now)
        return transitions.release_broken(connection, free, most)
