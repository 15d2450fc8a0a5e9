"""Decide about a planned time that comes while an earlier scheduled run of its job is unfinished.

The decisions are pure and ask for properties of the policy (`jobs/models/overlap.py`). Trigger, report and release
lock the job's gate before they read its unfinished runs: of a trigger and a report that meet, the second sees what the
first has committed, so no run waits for one that has ended. The gate belongs to the job: scheduled runs of all its
versions count, manual runs and retries do not.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from jobs.models import OVERLAP_POLICIES
from runs import transitions
from runs.reasons import Reason
from runs.sql import Connection, change, rows
from runs.states import FinalState, LiveState

# Properties as sets of policies: a pass asks for them several times for each due job.
NEEDS_GATE = frozenset(name for name, row in OVERLAP_POLICIES.items() if row.needs_gate)
ENDS_OTHERS = frozenset(name for name, row in OVERLAP_POLICIES.items() if row.ends_others)
COUNTS_UNFINISHED = frozenset(name for name, row in OVERLAP_POLICIES.items() if row.counts_unfinished)
# One pass ends so many unclaimed runs of a job; the next pass goes on with the rest.
MAX_ENDED = 1000


class OverlapDecision(NamedTuple):
    """The first state of a planned time's run; a final state is its outcome at once."""

    state: FinalState | None
    live_state: LiveState = LiveState.READY
    reason: str = ""


GOES = OverlapDecision(None)
WAITS = OverlapDecision(None, LiveState.BLOCKED, Reason.OVERLAP)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Hold whether a job has scheduled runs without an outcome, and whether one of them waits for the others."""

    any: bool = False
    waiting: bool = False

    def after(self, decision: OverlapDecision) -> "Unfinished":
        if decision.state is not None:
            return self
        return Unfinished(True, self.waiting or decision == WAITS)


NOTHING = Unfinished()
SOMETHING = Unfinished(True)


def decide(policy: str, unfinished: bool, waiting: bool = False) -> OverlapDecision:
    """Decide about one due time. A policy that ends the others waits for those that are still ending."""
    row = OVERLAP_POLICIES[policy]
    if not unfinished or not row.counts_unfinished:
        return GOES
    if not row.waits:
        return OverlapDecision(FinalState.SKIPPED, reason=Reason.OVERLAP_SKIPPED)
    if row.one_waits and waiting:
        return OverlapDecision(FinalState.SKIPPED, reason=Reason.OVERLAP_ONE_WAITS)
    return WAITS


def decide_all(policy: str, times: int, others: Unfinished) -> Iterable[OverlapDecision]:
    """Decide about the times of one job that are due together, the earliest first."""
    if times == 1:
        yield decide(policy, others.any, others.waiting)
        return
    ends_others = policy in ENDS_OTHERS
    for number in range(times):
        if ends_others and number < times - 1:
            yield OverlapDecision(FinalState.SKIPPED, reason=Reason.OVERLAP_SUPERSEDED)
            continue
        decision = decide(policy, others.any, others.waiting)
        others = others.after(decision)
        yield decision


def lock_gates(connection: Connection, jobs: Mapping[UUID, bool], *, waits: bool = False) -> set[UUID]:
    """Lock the gates of jobs (each with whether it has one) and return the jobs whose gate another session holds."""
    missing = [job for job, has_gate in jobs.items() if not has_gate]
    if missing:
        change(connection, "make_gates", {"jobs": missing})
    if not jobs:
        return set()
    # In the order of ids, as everywhere: two that lock several gates cannot wait for each other.
    values = {"jobs": sorted(jobs)}
    if waits:
        rows(connection, "wait_for_gates", values)
        return set()
    return set(jobs) - {job for (job,) in rows(connection, "take_gates", values)}


def unfinished_of(connection: Connection, jobs: Collection[UUID]) -> dict[UUID, Unfinished]:
    """Read the unfinished scheduled runs of jobs whose gates are locked; jobs without any are left out."""
    if not jobs:
        return {}
    found = rows(connection, "unfinished_of_jobs", {"jobs": list(jobs)})
    return {job: Unfinished(True, waiting) for job, waiting in found}


class Superseded(NamedTuple):
    # Another session holds a run of theirs, or they have too many for one pass: the next pass retries.
    busy: set[UUID]
    # A worker has a run of theirs and was requested to end it.
    unfinished: set[UUID]


def end_others(connection: Connection, jobs: Mapping[UUID, str], *, waits: bool = False) -> Superseded:
    """End the unfinished scheduled runs of jobs, by their policies; the gates are locked.

    Runs that no worker has end now. For the others a cancel request is written, and their reports release the new run.
    """
    if not jobs:
        return Superseded(set(), set())
    values = {"jobs": sorted(jobs)}
    if waits:
        rows(connection, "wait_for_others", values)
    most = None if waits else MAX_ENDED
    others = rows(connection, "lock_others", {**values, "most": most})
    busy = {job for _, job, state in others if state is None}
    unfinished = {job for _, job, state in others if state == LiveState.RUNNING} - busy
    for kills in (False, True):
        ids = [
            run
            for run, job, _ in others
            if OVERLAP_POLICIES[jobs[job]].kills_others == kills and job not in busy
        ]
        transitions.cancel_live_runs(connection, ids, Reason.OVERLAP_SUPERSEDED, terminate=kills)
    unclaimed = Counter(job for _, job, state in others if state != LiveState.RUNNING)
    crowded = {job for job, count in unclaimed.items() if most is not None and count >= most}
    return Superseded(busy | crowded, unfinished - crowded)
