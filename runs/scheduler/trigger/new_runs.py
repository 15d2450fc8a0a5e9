"""Insert the runs of planned times with their live rows, in one bulk statement."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings

from jobs.suspensions.rules import MAX_REASON_LENGTH
from runs.events import RunIdCollided
from runs.reasons import Reason
from runs.scheduler.trigger import overlap
from runs.scheduler.trigger.decision import TriggerDecision
from runs.scheduler.trigger.missed import Span
from runs.scheduler.trigger.overlap import OverlapDecision
from runs.scheduler.trigger.overrides import Special
from runs.sql import Connection, array, hexed, instant, quoted, rows
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk.ids import MILLISECOND, milliseconds, run_id


class NewRun(NamedTuple):
    """The columns of `insert_runs`, in its order.

    One with a final `state` gets no live row, and its `reason` says why. The others begin as `live_state`, which is
    `ready`, `delayed` (until `wake_at`) or `blocked`, and then the reason is the live row's.
    """

    id: UUID
    tenant_id: int
    job_id: UUID
    version: int
    pool_id: int
    trigger: str
    planned_at: datetime
    priority: int
    state: str | None
    available_at: datetime
    rank: int
    target_key: str
    gated: bool
    live_state: str
    reason: str
    wake_at: datetime | None


WRITTEN: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("id", "job_id"), hexed),
    **dict.fromkeys(("planned_at", "available_at", "wake_at"), instant),
    **dict.fromkeys(("target_key", "reason"), quoted),
}


@dataclass(slots=True)
class NewRuns:
    """The runs of a pass, and the jobs left to the next one because another session has their gate or their runs."""

    new: list[NewRun] = field(default_factory=list)
    left: set[UUID] = field(default_factory=set)


def new_runs(
    connection: Connection, decisions: Iterable[TriggerDecision], now: datetime, *, waits: bool = False
) -> NewRuns:
    """Turn trigger decisions into runs, and end the runs that are to end for them.

    Clocks are locked already; gates are locked here, and then nobody can release or end a run of theirs before the
    commit.
    """
    done = NewRuns()
    decisions = list(decisions)
    gated = {
        found.job.id: found.job
        for found in decisions
        if found.times and found.job.overlap in overlap.NEEDS_GATE
    }
    done.left |= overlap.lock_gates(connection, {job.id: job.gated for job in gated.values()}, waits=waits)
    if done.left:
        decisions = [found for found in decisions if found.job.id not in done.left]
    unfinished = overlap.unfinished_of(connection, gated.keys() - done.left)
    taken = already_run(connection, decisions)
    ending = {
        found.job.id: found.job.overlap
        for found in decisions
        if found.job.overlap in overlap.ENDS_OTHERS
        and found.job.id in unfinished
        and _free_times(found, taken)
    }
    ended = overlap.end_others(connection, ending, waits=waits)
    done.left |= ended.busy
    for job in ending.keys() - ended.unfinished:
        del unfinished[job]
    for found in decisions:
        if not done.left or found.job.id not in done.left:
            presumed = overlap.SOMETHING if found.job.busy else overlap.NOTHING
            others = unfinished.get(found.job.id, presumed)
            done.new += _runs_of(found, _free_times(found, taken), others, now)
    done.new.sort(key=lambda run: run.id.int)
    return done


def _free_times(found: TriggerDecision, taken: Collection[UUID]) -> list[datetime]:
    """Return the times that are to run, less those known to have their run already."""
    if not taken and not found.special:
        return found.times
    return [
        planned_at
        for planned_at in found.times
        if run_id(found.job.id, planned_at) not in taken and not found.is_skipped(planned_at)
    ]


def _runs_of(
    found: TriggerDecision, times: Sequence[datetime], others: overlap.Unfinished, now: datetime
) -> Iterable[NewRun]:
    job = found.job
    trigger = Trigger.CATCH_UP.value if found.catch_up else Trigger.SCHEDULE.value
    gated = job.gated or job.overlap in overlap.NEEDS_GATE
    decided = list(zip(times, overlap.decide_all(job.overlap, len(times), others), strict=True))
    if found.special:
        decided += [(at, OverlapDecision(FinalState.SKIPPED)) for at in found.times if found.is_skipped(at)]
    for planned_at, decision in decided:
        # What is made up for takes its place behind the work that is due now.
        available_at, wake_at = now if found.catch_up else planned_at, None
        if planned_at in found.special:
            special = found.special[planned_at]
            available_at, decision = special.available_at, _specially(special, decision, now)
            wake_at = available_at if decision.live_state == LiveState.DELAYED else None
        yield NewRun(
            run_id(job.id, planned_at), job.tenant_id, job.id, job.version, job.pool_id, trigger, planned_at,
            job.priority, decision.state and decision.state.value, available_at,
            rank(available_at, job.priority), job.target_key, gated, decision.live_state.value,
            decision.reason, wake_at,
        )  # fmt: skip


def _specially(special: Special, decision: OverlapDecision, now: datetime) -> OverlapDecision:
    if special.skipped:
        return decision._replace(reason=special.reason)
    if decision == overlap.GOES and special.available_at > now:
        return OverlapDecision(None, LiveState.DELAYED, special.reason[:MAX_REASON_LENGTH])
    return decision


def rank(available_at: datetime, priority: int) -> int:
    """Return the rank of a run that may go from then on: it does not change with time, and lower goes first."""
    return milliseconds(available_at) - priority * int(settings.STARVATION_BOUND_SECONDS)


def already_run(connection: Connection, decisions: Iterable[TriggerDecision]) -> set[UUID]:
    """Return runs that exist already: they must not count as unfinished, nor end others."""
    ids = [
        run_id(found.job.id, planned_at)
        for found in decisions
        if found.job.overlap in overlap.ENDS_OTHERS
        or (len(found.times) > 1 and found.job.overlap in overlap.COUNTS_UNFINISHED)
        for planned_at in found.times
    ]
    return set(_owners(connection, ids))


def _owners(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, UUID]:
    if not ids:
        return {}
    return dict(rows(connection, "runs_that_exist", {"ids": ids, "first": min(ids), "last": max(ids)}))


def insert_runs(connection: Connection, new: Sequence[NewRun]) -> set[UUID]:
    if not new:
        return set()
    columns = zip(NewRun._fields, zip(*new, strict=True), strict=True)
    values = {name: array(column, WRITTEN.get(name, str)) for name, column in columns}
    return {row[0] for row in rows(connection, "insert_runs", values)}


def collisions(
    connection: Connection, refused: Sequence[NewRun], decisions: Iterable[TriggerDecision]
) -> tuple[list[Span], list[RunIdCollided]]:
    """Return missed times for runs whose id belongs to another job; a time that has its run already needs nothing."""
    owners = _owners(connection, [run.id for run in refused])
    strangers = [run for run in refused if owners.get(run.id, run.job_id) != run.job_id]
    if not strangers:
        return [], []
    jobs = {found.job.id: found.job for found in decisions}
    missed = [
        Span(jobs[run.job_id], run.planned_at, run.planned_at + MILLISECOND, Reason.ID_TAKEN)
        for run in strangers
    ]
    return missed, [
        RunIdCollided(run_id=run.id, job_id=run.job_id, owner_id=owners[run.id]) for run in strangers
    ]
