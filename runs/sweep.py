"""Looks again at what is blocked, reason by reason and job by job, at least every SWEEP_SECONDS.

Most runs are let go by whatever ends their reason, a report above all; this finds the others. However many are
blocked, a pass ends after its time, and the next one goes on where it stopped.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import UUID

from runs import overlap, transitions
from runs.queries import Connection, rows

SWEEP_SECONDS = 2.0
LONGEST_LOOK_SECONDS = 0.2
MOST_JOBS = 200
NO_JOB = UUID(int=0)

# Of these jobs, at this time, at most so many runs; returns how many went.
Release = Callable[[Connection, Sequence[UUID], datetime, int], int]


@dataclass(slots=True)
class Sweep:
    """Of each reason whose round is not over: the job it has come to."""

    rounds: dict[str, UUID] = field(default_factory=dict)

    def begin(self) -> None:
        for reason in RELEASES:
            self.rounds.setdefault(reason, NO_JOB)


def look_again(connection: Connection, sweep: Sweep, now: datetime, most: int) -> int:
    """A batch of each reason in turn until all rounds are over, or the time is. Returns how many runs went."""
    until = time.monotonic() + LONGEST_LOOK_SECONDS
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
    values = {"reason": reason, "after": after, "most": MOST_JOBS}
    jobs = [job for (job,) in rows(connection, "jobs_blocked_for", values)]
    released = RELEASES[reason](connection, jobs, now, most) if jobs else 0
    if released >= most:
        return released  # these jobs have more of them
    if len(jobs) == MOST_JOBS:
        sweep.rounds[reason] = jobs[-1]
    else:
        del sweep.rounds[reason]
    return released


def _release_gated(connection: Connection, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    return transitions.release_gated(connection, jobs)


def _release_waiting(connection: Connection, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    """A gate in somebody's hands is left to them: they release, or the next round does."""
    alone = [job for (job,) in rows(connection, "jobs_without_others", {"jobs": list(jobs)})]
    if not alone:
        return 0
    with connection.transaction():
        busy = overlap.lock_gates(connection, dict.fromkeys(alone, True))
        return transitions.release_waiting(connection, [job for job in alone if job not in busy])


def _release_broken(connection: Connection, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    """Of breakers that have cooled down the probe, of those that are closed by now everything."""
    with connection.transaction():
        busy = overlap.lock_gates(connection, dict.fromkeys(jobs, True))
        free = [job for job in jobs if job not in busy]
        transitions.begin_probes(connection, free, now)
        return transitions.release_broken(connection, free, most)


def _release_known(connection: Connection, jobs: Sequence[UUID], now: datetime, most: int) -> int:
    return transitions.release_known(connection, jobs, now, most)


def _release_unstopped(
    reason: str, connection: Connection, jobs: Sequence[UUID], now: datetime, most: int
) -> int:
    return transitions.release_unstopped(connection, jobs, reason, now, most)


def _release_permitted(
    reason: str, connection: Connection, jobs: Sequence[UUID], now: datetime, most: int
) -> int:
    return transitions.release_permitted(connection, jobs, reason, most)


RELEASES: dict[str, Release] = {
    transitions.CONCURRENCY: _release_gated,
    transitions.OVERLAP: _release_waiting,
    transitions.BREAKER: _release_broken,
    transitions.UNKNOWN_TARGET: _release_known,
    **{reason: partial(_release_unstopped, reason) for reason in (transitions.PAUSED, transitions.BLACKOUT)},
    **{
        reason: partial(_release_permitted, reason)
        for reason in (transitions.NOT_ALLOWED, transitions.NOT_EXPORTED)
    },
}
