"""Settle missed times afterwards: what a pause or a suspension kept back, and what the policy `all` makes up for.

Each step locks the clocks of its jobs first, so it meets no trigger decision and no change of them half-way; a job that
another session has locked waits for the next step. Runs and the span they are taken from change in one transaction.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from uuid import UUID

from jobs.suspensions.rules import SuspensionSet
from runs.events import Event
from runs.scheduler.catch_up.after_suspension import end_suspension
from runs.scheduler.catch_up.caught_up import CaughtUp
from runs.scheduler.catch_up.pacing import Rest, advance
from runs.scheduler.partitions.lock_session import refuse_other_session
from runs.scheduler.trigger import missed_spans as spans
from runs.scheduler.trigger.decision import TriggerDecision, note_all, settle_missed
from runs.scheduler.trigger.missed import MAX_COUNTED, NO_SUSPENSIONS, WORKING, counted
from runs.scheduler.trigger.suspensions import read_suspensions
from runs.scheduler.trigger.trigger import changes_of, due_jobs, halve, write_runs
from runs.sql import Connection, change, rows

MAX_JOBS = 500
MAX_RUNS = 1000
MAX_COUNTED_AT_ONCE = 100
COUNTING_SECONDS = 0.02


class Settled(NamedTuple):
    """The result of settling a missed interval; `missed` is None for more planned times than are counted."""

    policy: str
    missed: int | None
    # At once, and later at the pace of the policy `all`.
    runs_now: int
    will_run: int
    # For the caller to emit once its transaction has committed.
    events: tuple[Event, ...] = ()


def settle_gap(
    connection: Connection,
    job_id: UUID,
    begins_at: datetime,
    ends_at: datetime,
    reason: str,
    policy: str | None = None,
) -> Settled:
    """Settle the planned times of the job's present version in [begins_at, ends_at); the caller holds its clock.

    The policy is the job's, unless another is given.
    """
    with connection.transaction():
        while True:  # once more if a suspension that it relied on was lifted at that moment
            gap = _read_gap(connection, job_id, begins_at, ends_at, reason, policy)
            written = write_runs(connection, [gap.found], gap.suspensions, gap.now, waits=True)
            if not written.left:
                return gap.settled(written.runs)._replace(events=tuple(written.events))


def foresee_gap(
    connection: Connection, job_id: UUID, begins_at: datetime, ends_at: datetime, policy: str | None = None
) -> Settled:
    """Return what `settle_gap` would do now."""
    gap = _read_gap(connection, job_id, begins_at, ends_at, "", policy)
    return gap.settled(sum(1 for at in gap.found.times if not gap.found.is_skipped(at)))


class IntervalDecision(NamedTuple):
    now: datetime
    suspensions: SuspensionSet
    found: TriggerDecision
    missed: int
    policy: str

    def settled(self, runs_now: int) -> Settled:
        most = self.found.job.catch_up.most
        working = [span for span in self.found.spans if span.state == WORKING]
        to_come = sum(min(span.number or 0, most) for span in working)
        return Settled(self.policy, None if self.missed == MAX_COUNTED else self.missed, runs_now, to_come)


def _read_gap(
    connection: Connection,
    job_id: UUID,
    begins_at: datetime,
    ends_at: datetime,
    reason: str,
    policy: str | None,
) -> IntervalDecision:
    now = rows(connection, "session_and_time")[0][1]
    suspensions = read_suspensions(connection, now)
    (job,) = due_jobs(connection, {job_id: begins_at}, suspensions)
    changes = changes_of(connection, {job_id: begins_at}).get(job_id, [])
    try:
        found = settle_missed(job, ends_at, now, reason, suspensions, changes, policy)
        found.spans = [
            span._replace(number=counted(job, span.begins_at, span.ends_at)) for span in found.spans
        ]
        missed = counted(job, begins_at, ends_at)
    except Exception:  # noqa: BLE001 - an unrunnable job is so because this raises
        found, missed = note_all(job, ends_at, reason, changes), MAX_COUNTED
    return IntervalDecision(now, suspensions, found, missed, policy or job.catch_up.policy)


def give_up(connection: Connection, job_id: UUID, reason: str) -> int:
    """Drop what is left to make up for. The caller holds the clock."""
    return change(connection, "give_up_spans", {"job": job_id, "reason": reason})


def catch_up_once(
    connection: Connection, slices: Collection[int], pid: int | None = None, most: int = MAX_JOBS
) -> CaughtUp:
    """Take one step over the slices held, for at most so many jobs; the caller makes sure that nothing is due there.

    1. Settle what waited for suspensions that are over, and end those that nothing waits for any more.
    2. Make the next runs of working spans, as their pace allows.
    3. With time left, count the times of spans.
    """
    session, now, next_at, suspensions_are_over = rows(
        connection, "next_catch_up", {"slices": sorted(slices)}
    )[0]
    refuse_other_session(session, pid)
    done = CaughtUp(now)
    if not slices:
        return done
    if suspensions_are_over:
        for suspension in read_suspensions(connection, now).over(now):
            done.add(end_suspension(connection, suspension, slices, now, most))
    if next_at is not None and next_at <= now:
        _work_off(connection, slices, most, done)
    if not done.more:
        _count(connection, slices, done)
    return done


def _work_off(connection: Connection, slices: Collection[int], most: int, done: CaughtUp) -> None:
    """Take one step of each job whose pace allows it, in one of its spans."""
    stepped = CaughtUp(done.now)
    with connection.transaction():
        share = -(-most // len(slices))
        wanted = {"slices": sorted(slices), "now": done.now, "share": share}
        jobs = [job for (job,) in rows(connection, "jobs_with_due_spans", wanted)]
        suspensions = read_suspensions(connection, done.now)
        taken = spans.take(
            connection, "lock_due_spans", jobs, {"now": done.now}, need_tags=suspensions.need_tags
        )
        steps = _steps({one.job.id: one for one in reversed(taken)}.values(), suspensions, done)
        write = partial(_write_steps, connection, steps, stepped)

        def give_up_step(found: TriggerDecision, reason: str) -> None:
            step = steps[found.job.id]
            found = spans.given_up([step.taken], reason)
            steps[found.job.id] = Stepped(step.taken, found, None, step.next_at)
            write([found])

        halve(connection, [step.found for step in steps.values()], write, give_up_step)
    done.add(stepped)


@dataclass(slots=True)
class Stepped:
    taken: spans.LockedSpan
    found: TriggerDecision
    rest: Rest | None
    next_at: datetime


def _steps(
    taken: Iterable[spans.LockedSpan], suspensions: SuspensionSet, done: CaughtUp
) -> dict[UUID, Stepped]:
    steps: dict[UUID, Stepped] = {}
    runs = 0
    for one in taken:
        if runs >= MAX_RUNS:
            done.more = True
            break
        job, span = one.job, one.span
        assert span.cursor is not None  # noqa: S101 - the database sees to it for working spans
        rest = Rest(span.begins_at, span.ends_at, span.cursor, span.made)
        try:
            step = advance(job, rest, suspensions, done.now)
        except Exception as error:  # as above
            steps[job.id] = Stepped(one, spans.given_up([one], str(error)), None, done.now)
            continue
        runs += len(step.times)
        found = TriggerDecision(job, step.times, catch_up=True, spans=step.missed)
        steps[job.id] = Stepped(one, found, step.rest, step.next_at)
    return steps


def _write_steps(
    connection: Connection,
    steps: Mapping[UUID, Stepped],
    done: CaughtUp,
    decisions: Sequence[TriggerDecision],
) -> None:
    written = write_runs(connection, decisions, NO_SUSPENSIONS, done.now)
    stepped = [steps[found.job.id] for found in decisions if found.job.id not in written.left]
    ended = [step.taken.span.id for step in stepped if step.rest is None]
    moved = [(step, step.rest) for step in stepped if step.rest is not None]
    if ended:
        change(connection, "end_spans", {"ids": ended})
    if moved:
        columns = zip(Rest._fields, zip(*(rest for _, rest in moved), strict=True), strict=True)
        values = {name: list(column) for name, column in columns}
        values["id"] = [step.taken.span.id for step, _ in moved]
        values["next_at"] = [step.next_at for step, _ in moved]
        change(connection, "move_spans", values)
    jobs = {step.taken.job.id: step.next_at for step in stepped if step.found.times}
    if jobs:
        change(connection, "pace_other_spans", {"job_id": list(jobs), "next_at": list(jobs.values())})
    done.runs += written.runs
    done.events += written.events


def _count(connection: Connection, slices: Collection[int], done: CaughtUp) -> None:
    """Count the times of spans for a short time, since nobody waits for it; the next step continues."""
    found = rows(connection, "uncounted_spans", {"slices": sorted(slices), "most": MAX_COUNTED_AT_ONCE})
    end, counts = time.monotonic() + COUNTING_SECONDS, {}
    for span, job in spans.with_jobs(connection, [spans.SpanRow(*row) for row in found]):
        try:
            counts[span.id] = span.made + counted(job, span.begins_at, span.ends_at)
        except Exception:  # noqa: BLE001 - of a schedule that cannot be read any more
            counts[span.id] = 1
        if time.monotonic() > end:
            break
    if counts:
        values = {"id": list(counts), "count": list(counts.values())}
        done.counted = change(connection, "count_spans", values)
