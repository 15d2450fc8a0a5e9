"""Missed times after the fact: what a pause or a stop kept back, and what the policy `all` works off at its pace.

Each step locks the clocks of its jobs first, so it meets no visit and no change of them half-way; a job that somebody
has in hand waits for the next step. Runs and the span they are taken from change in one transaction.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import NamedTuple
from uuid import UUID

from jobs.stop_rules import Stops
from runs import spans
from runs.catch_up_pace import Rest, advance
from runs.due_jobs import DueJob
from runs.ended_stops import end_stop
from runs.gaps import MOST_COUNTED, NO_STOPS, WORKING, counted
from runs.queries import Connection, array, change, hexed, rows
from runs.slices import LostLocks
from runs.stops import read_stops
from runs.trigger import changes_of, halve, write_runs
from runs.visits import Visit, settle_missed, tell_all

MOST_JOBS = 500
MOST_RUNS = 1000
MOST_COUNTED_AT_ONCE = 100
COUNTING_SECONDS = 0.02


class Settled(NamedTuple):
    """What became of a gap. `missed` is None for more planned times than are counted."""

    policy: str
    missed: int | None
    # At once, and later at the pace of the policy `all`.
    runs_now: int
    will_run: int


def settle_gap(
    connection: Connection,
    job_id: UUID,
    from_at: datetime,
    to_at: datetime,
    reason: str,
    policy: str | None = None,
) -> Settled:
    """Planned times of the job's present version in [from_at, to_at), in the transaction of whoever holds its clock.

    By the policy of the job, unless another is given.
    """
    with connection.transaction():
        gap = _read_gap(connection, job_id, from_at, to_at, reason, policy)
        written = write_runs(connection, [gap.found], gap.stops, gap.now, waits=True)
        while written.left:  # a stop that it relied on was lifted at that moment
            gap = _read_gap(connection, job_id, from_at, to_at, reason, policy)
            written = write_runs(connection, [gap.found], gap.stops, gap.now, waits=True)
    return gap.settled(written.runs)


def foresee_gap(
    connection: Connection, job_id: UUID, from_at: datetime, to_at: datetime, policy: str | None = None
) -> Settled:
    """What `settle_gap` would do now."""
    gap = _read_gap(connection, job_id, from_at, to_at, "", policy)
    return gap.settled(sum(1 for at in gap.found.times if not gap.found.is_skipped(at)))


class Gap(NamedTuple):
    now: datetime
    stops: Stops
    found: Visit
    missed: int
    policy: str

    def settled(self, runs_now: int) -> Settled:
        most = self.found.job.catch_up.most
        working = [span for span in self.found.spans if span.state == WORKING]
        to_come = sum(min(span.number or 0, most) for span in working)
        return Settled(self.policy, None if self.missed == MOST_COUNTED else self.missed, runs_now, to_come)


def _read_gap(
    connection: Connection,
    job_id: UUID,
    from_at: datetime,
    to_at: datetime,
    reason: str,
    policy: str | None,
) -> Gap:
    now = rows(connection, "session_and_time")[0][1]
    stops = read_stops(connection, now)
    values = {"jobs": array([job_id], hexed), "need_tags": stops.need_tags}
    job = DueJob(from_at.astimezone(timezone.utc), *rows(connection, "jobs_of_clocks", values)[0])
    changes = changes_of(connection, {job_id: from_at}).get(job_id, [])
    try:
        found = settle_missed(job, to_at, now, reason, stops, changes, policy)
        found.spans = [span._replace(number=counted(job, span.from_at, span.to_at)) for span in found.spans]
        missed = counted(job, from_at, to_at)
    except Exception:  # noqa: BLE001 - a parked job is parked because this raises
        found, missed = tell_all(job, to_at, reason, changes), MOST_COUNTED
    return Gap(now, stops, found, missed, policy or job.catch_up.policy)


def give_up(connection: Connection, job_id: UUID, reason: str) -> int:
    """What is left to make up for gets no run. The caller holds the clock."""
    return change(connection, "give_up_spans", {"job": job_id, "reason": reason})


def tell_moved(connection: Connection, job_id: UUID, now: datetime, reason: str) -> int:
    """What came and was moved to later gets no run any more. The caller holds the clock."""
    return change(connection, "tell_moved", {"job": job_id, "now": now, "reason": reason})


def go_on_with(connection: Connection, job_id: UUID, before: int, version: int) -> int:
    """Both versions plan the same times; what was missed runs as the new one says. The caller holds the clock."""
    return change(connection, "move_spans_to_version", {"job": job_id, "before": before, "version": version})


@dataclass(slots=True)
class CaughtUp:
    now: datetime
    runs: int = 0
    # Spans of stops that are over, and stops that nothing waits for any more.
    settled: int = 0
    ended: int = 0
    counted: int = 0
    # There is more to do at once.
    more: bool = False


def catch_up_once(
    connection: Connection, slices: Collection[int], pid: int | None = None, most: int = MOST_JOBS
) -> CaughtUp:
    """One step over the slices held, of at most so many jobs; the caller sees to it that nothing is due there.

    1. Settle what waited for stops that are over, and end those that nothing waits for any more.
    2. Make the next runs of working spans, as their pace allows.
    3. With time left, count the times of spans.
    """
    session, now, next_at, stops_are_over = rows(connection, "next_catch_up", {"slices": sorted(slices)})[0]
    if pid is not None and session != pid:
        raise LostLocks(LostLocks.__doc__)
    done = CaughtUp(now)
    if not slices:
        return done
    if stops_are_over:
        for stop in read_stops(connection, now).over(now):
            ended = end_stop(connection, stop, slices, now, most)
            done.runs += ended.runs
            done.settled += ended.spans
            done.ended += ended.stop
            done.more |= ended.more
    if next_at is not None and next_at <= now:
        _work_off(connection, slices, most, done)
    if not done.more:
        _count(connection, slices, done)
    return done


def _work_off(connection: Connection, slices: Collection[int], most: int, done: CaughtUp) -> None:
    """One step of each job whose pace allows it, of one of its spans."""
    with connection.transaction():
        share = -(-most // len(slices))
        wanted = {"slices": sorted(slices), "now": done.now, "share": share}
        jobs = [job for (job,) in rows(connection, "jobs_with_due_spans", wanted)]
        stops = read_stops(connection, done.now)
        taken = spans.take(connection, "lock_due_spans", jobs, {"now": done.now}, need_tags=stops.need_tags)
        steps = _steps({one.job.id: one for one in reversed(taken)}.values(), stops, done)
        write = partial(_write_steps, connection, steps, done)
        halve(
            connection, [step.found for step in steps.values()], write, partial(_give_up_step, write, steps)
        )


@dataclass(slots=True)
class Stepped:
    taken: spans.Taken
    found: Visit
    rest: Rest | None
    next_at: datetime


def _steps(taken: Iterable[spans.Taken], stops: Stops, done: CaughtUp) -> dict[UUID, Stepped]:
    steps: dict[UUID, Stepped] = {}
    runs = 0
    for one in taken:
        if runs >= MOST_RUNS:
            done.more = True
            break
        job, span = one.job, one.span
        assert span.cursor is not None  # noqa: S101 - the database sees to it for working spans
        rest = Rest(span.from_at, span.to_at, span.cursor, span.made, done.now)
        try:
            step = advance(job, rest, stops, done.now)
        except Exception as error:  # as above
            steps[job.id] = Stepped(one, spans.given_up([one], str(error)), None, done.now)
            continue
        runs += len(step.times)
        found = Visit(job, step.times, catch_up=True, spans=step.told)
        steps[job.id] = Stepped(one, found, step.rest, step.next_at)
    return steps


def _write_steps(
    connection: Connection, steps: Mapping[UUID, Stepped], done: CaughtUp, visits: Sequence[Visit]
) -> None:
    written = write_runs(connection, visits, NO_STOPS, done.now)
    stepped = [steps[found.job.id] for found in visits if found.job.id not in written.left]
    ended = [step.taken.span.id for step in stepped if step.rest is None]
    moved = [(step.taken, step.rest) for step in stepped if step.rest is not None]
    if ended:
        change(connection, "end_spans", {"ids": ended})
    if moved:
        columns = zip(Rest._fields, zip(*(rest for _, rest in moved), strict=True), strict=True)
        values = {name: list(column) for name, column in columns}
        change(connection, "move_spans", {**values, "id": [taken.span.id for taken, _ in moved]})
    jobs = {step.taken.job.id: step.next_at for step in stepped if step.found.times}
    if jobs:
        change(connection, "pace_other_spans", {"job_id": list(jobs), "next_at": list(jobs.values())})
    done.runs += written.runs


def _give_up_step(
    write: Callable[[Sequence[Visit]], None], steps: dict[UUID, Stepped], found: Visit, note: str
) -> None:
    step = steps[found.job.id]
    steps[found.job.id] = Stepped(step.taken, spans.given_up([step.taken], note), None, step.next_at)
    write([steps[found.job.id].found])


def _count(connection: Connection, slices: Collection[int], done: CaughtUp) -> None:
    """Within a short time, as nobody waits for it; the next step goes on."""
    found = rows(connection, "uncounted_spans", {"slices": sorted(slices), "most": MOST_COUNTED_AT_ONCE})
    end, counts = time.monotonic() + COUNTING_SECONDS, {}
    for span, job in spans.with_jobs(connection, [spans.SpanRow(*row) for row in found]):
        try:
            counts[span.id] = span.made + counted(job, span.from_at, span.to_at)
        except Exception:  # noqa: BLE001 - of a schedule that cannot be read any more
            counts[span.id] = 1
        if time.monotonic() > end:
            break
    if counts:
        values = {"id": list(counts), "count": list(counts.values())}
        done.counted = change(connection, "count_spans", values)
