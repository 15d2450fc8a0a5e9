"""What becomes of a planned time while an earlier scheduled run of its job is unfinished.

Deciding is pure. Whoever looks at a job's unfinished runs, to decide or to let the next one go, holds the job's gate
before it looks: of a trigger and a report that meet, the second sees what the first has done, so no run waits for one
that has ended. The gate belongs to the job: its runs of all versions count, manual ones and retries do not.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from jobs.models import Overlap
from runs import transitions
from runs.queries import Connection, change, rows
from runs.states import FinalState, LiveState

SKIPPED = "overlap"
ONE_WAITS = "overlap: one run waits already"
SUPERSEDED = "overlap: a later time took its place"

CANCELLING = frozenset({Overlap.CANCEL_OTHER.value, Overlap.TERMINATE_OTHER.value})
BUFFERING = frozenset({Overlap.BUFFER_ONE.value, Overlap.BUFFER_ALL.value})
# The others need no gate: what they decide is right whatever ends at the same moment.
GATED = BUFFERING | CANCELLING
# So many unclaimed runs of a job are ended in one pass; the job is looked at again while there are more.
MOST_ENDED = 1000


class Decision(NamedTuple):
    """How the run of a planned time is born; a final state is its outcome."""

    state: FinalState | None
    live_state: LiveState = LiveState.READY
    reason: str = ""


GOES = Decision(None)
WAITS = Decision(None, LiveState.BLOCKED, transitions.OVERLAP)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Of a job, by its scheduled runs: is there one without an outcome, and one that waits for the others?"""

    any: bool = False
    waiting: bool = False

    def after(self, decision: Decision) -> "Unfinished":
        if decision.state is not None:
            return self
        return Unfinished(True, self.waiting or decision == WAITS)


NOTHING = Unfinished()
SOMETHING = Unfinished(True)


def decide(policy: str, unfinished: bool, waiting: bool = False) -> Decision:
    """Of a planned time that is due. With a policy that ends the others, what is unfinished by now still ends."""
    if not unfinished or policy == Overlap.ALLOW_ALL:
        return GOES
    if policy == Overlap.SKIP:
        return Decision(FinalState.SKIPPED, reason=SKIPPED)
    if policy == Overlap.BUFFER_ONE and waiting:
        return Decision(FinalState.SKIPPED, reason=ONE_WAITS)
    return WAITS


def decide_all(policy: str, times: int, others: Unfinished) -> Iterable[Decision]:
    """Of so many times of one job that are due together, the earliest first."""
    if times == 1:
        yield decide(policy, others.any, others.waiting)
        return
    for number in range(times):
        if policy in CANCELLING and number < times - 1:
            yield Decision(FinalState.SKIPPED, reason=SUPERSEDED)
            continue
        decision = decide(policy, others.any, others.waiting)
        others = others.after(decision)
        yield decision


def lock_gates(connection: Connection, jobs: Mapping[UUID, bool], *, waits: bool = False) -> set[UUID]:
    """Of jobs with such a policy, and whether they have their gate. Returns those whose gate somebody holds."""
    missing = [job for job, has_gate in jobs.items() if not has_gate]
    if missing:
        change(connection, "make_gates", {"jobs": missing})
    if not jobs:
        return set()
    wanted = {"jobs": sorted(jobs)}
    if waits:
        rows(connection, "wait_for_gates", wanted)
        return set()
    return set(jobs) - {job for (job,) in rows(connection, "take_gates", wanted)}


def unfinished_of(connection: Connection, jobs: Collection[UUID]) -> dict[UUID, Unfinished]:
    """The gates are ours. Jobs without unfinished runs are not in it."""
    if not jobs:
        return {}
    found = rows(connection, "unfinished_of_jobs", {"jobs": list(jobs)})
    return {job: Unfinished(True, waiting) for job, waiting in found}


class Ended(NamedTuple):
    # Somebody has a run of theirs at this moment, or they have too many for one pass: they are looked at again.
    busy: set[UUID]
    # A worker has a run of theirs, and was asked to end it.
    unfinished: set[UUID]


def end_others(connection: Connection, jobs: Mapping[UUID, str], *, waits: bool = False) -> Ended:
    """Ends the unfinished scheduled runs of jobs, by their policies; the gates are ours.

    Those no worker has end now. The workers of the others are told, and their reports let the new run go.
    """
    if not jobs:
        return Ended(set(), set())
    wanted = {"jobs": sorted(jobs)}
    if waits:
        rows(connection, "wait_for_others", wanted)
    most = None if waits else MOST_ENDED
    others = rows(connection, "lock_others", {**wanted, "most": most})
    busy = {job for _, job, state in others if state is None}
    unfinished = {job for _, job, state in others if state == LiveState.RUNNING} - busy
    for policy in CANCELLING:
        ids = [run for run, job, _ in others if jobs[job] == policy and job not in busy]
        hard = policy == Overlap.TERMINATE_OTHER
        transitions.cancel_live_runs(connection, ids, SUPERSEDED, terminate=hard)
    unclaimed = Counter(job for _, job, state in others if state != LiveState.RUNNING)
    crowded = {job for job, count in unclaimed.items() if most is not None and count >= most}
    return Ended(busy | crowded, unfinished - crowded)
