"""Decide about planned times that were missed: which of them still run, and which are noted as spans. Pure.

A planned time either has a run or lies in a span, never both.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from jobs.schedules import Cron, Schedule, due_times, next_after
from jobs.suspensions.rules import SuspensionRow, SuspensionSet
from runs.reasons import Reason
from runs.scheduler.trigger.due_job import DueJob, longest_reach
from scheduler_project.sdk.ids import EPOCH, MILLISECOND

SKIP, LAST, ALL = "skip", "last", "all"
SETTLED, WORKING, OPEN = "settled", "working", "open"
# No further are the times of a span counted.
MAX_COUNTED = 10_000
NO_SUSPENSIONS = SuspensionSet()


class Span(NamedTuple):
    """A row of missed times, counted on the schedule of the job's version."""

    job: DueJob
    begins_at: datetime
    ends_at: datetime
    reason: str
    policy: str = SKIP
    state: str = SETTLED
    suspension_id: int | None = None
    # Working: the next time to run. Open: the planned time after the last one in it, if there is one.
    cursor: datetime | None = None
    next_at: datetime | None = None
    # How many planned times it holds, if they were counted.
    number: int | None = None


class Segment(NamedTuple):
    """Missed times that are treated alike; `begins_at` is the first of them."""

    begins_at: datetime
    ends_at: datetime
    suspension: SuspensionRow | None = None


class CatchUpPlan(NamedTuple):
    """At most one run at once, and spans; the policy `all` works its spans off later."""

    run_at: datetime | None
    spans: list[Span]


def split(
    job: DueJob,
    begins_at: datetime,
    ends_at: datetime,
    suspensions: SuspensionSet = NO_SUSPENSIONS,
    without: Collection[datetime] = (),
) -> list[Segment]:
    """Split [begins_at, ends_at) where suspensions begin and end, less single times; `begins_at` is a planned time."""
    if begins_at >= ends_at:
        return []
    if not suspensions and not without:
        return [Segment(begins_at, ends_at)]
    edges = {begins_at, ends_at}
    for suspension in suspensions.rows:
        edges |= {suspension.begins_at, suspension.over_at or ends_at}
    for single in without:
        edges |= {single, single + MILLISECOND}
    pieces: list[Segment] = []
    for begin, end in pairwise(sorted(edge for edge in edges if begins_at <= edge <= ends_at)):
        first = begin if begin == begins_at else job.first_time(begin, end)
        if first is None or first in without:
            continue
        found = suspending(job, suspensions, first)
        if pieces and pieces[-1].ends_at == begin and pieces[-1].suspension == found:
            pieces[-1] = pieces[-1]._replace(ends_at=end)
        else:
            pieces.append(Segment(first, end, found))
    return pieces


def suspending(job: DueJob, suspensions: SuspensionSet, planned_at: datetime) -> SuspensionRow | None:
    return suspensions.suspends(job.tenant_id, job.pool_id, job.id, job.tags, planned_at)


def open_span(job: DueJob, piece: Segment) -> Span:
    """Return a span that each trigger decision makes longer until the suspension is over."""
    begin, end, suspension = piece
    assert suspension is not None  # noqa: S101 - called only for those
    follows = job.next_time(end - MILLISECOND)
    return Span(job, begin, end, suspension.stored_reason, job.catch_up.policy, OPEN, suspension.id, follows)


def make_up(
    job: DueJob,
    pieces: Sequence[Segment],
    now: datetime,
    reason: str,
    *,
    policy: str | None = None,
    superseded: bool = False,
    window: timedelta | None = None,
) -> CatchUpPlan:
    """Apply the job's policy and window.

    A missed time that is `superseded` by a later one is not the last any more.
    """
    policy = policy or job.catch_up.policy
    reach = now - min(job.catch_up.window if window is None else window, longest_reach())
    if policy == ALL:
        return CatchUpPlan(
            None, [span for piece in pieces for span in _work_off(job, piece, now, reason, reach)]
        )
    run_at, kept = None, list(pieces)
    if policy == LAST and kept and not superseded:
        newest = kept.pop()
        last = job.last_time(newest.begins_at, newest.ends_at) or newest.begins_at
        if last >= reach:
            run_at, newest = last, newest._replace(ends_at=last)
        if newest.begins_at < newest.ends_at:
            kept.append(newest)
    return CatchUpPlan(run_at, [Span(job, piece.begins_at, piece.ends_at, reason, policy) for piece in kept])


def _work_off(job: DueJob, piece: Segment, now: datetime, reason: str, reach: datetime) -> list[Span]:
    """Return the part within reach as a working span, and the part before it as too old."""
    first, spans = within_reach(job, piece.begins_at, piece.ends_at, reach)
    if first is None:
        return spans
    cursor, ends_at = first, piece.ends_at
    if job.catch_up.newest_first:
        cursor = job.last_time(first, ends_at) or first
        ends_at = cursor + MILLISECOND
    spans.append(Span(job, first, ends_at, reason, ALL, WORKING, None, cursor, now))
    return spans


def within_reach(
    job: DueJob, begins_at: datetime, ends_at: datetime, reach: datetime
) -> tuple[datetime | None, list[Span]]:
    """Return the first time of [begins_at, ends_at) that may still run, and those before it as too old."""
    if begins_at >= reach:
        return begins_at, []
    first = job.first_time(reach, ends_at)
    return first, [Span(job, begins_at, first or ends_at, Reason.TOO_OLD, ALL)]


def counted(job: DueJob, begins_at: datetime, ends_at: datetime) -> int:
    """Return how many planned times lie in [begins_at, ends_at); MAX_COUNTED stands for that many or more."""
    schedule = job.read_schedule()
    # After an outage thousands of jobs share a pattern and its missed times.
    anchor = EPOCH if isinstance(schedule, Cron) else job.anchor_at
    return _counted(schedule, anchor, begins_at, ends_at)


@lru_cache(maxsize=4096)
def _counted(schedule: Schedule, anchor: datetime, begins_at: datetime, ends_at: datetime) -> int:
    first = next_after(schedule, begins_at - MILLISECOND, anchor=anchor)
    if first is None or first >= ends_at:
        return 0
    return len(due_times(schedule, first, ends_at - MILLISECOND, anchor=anchor, limit=MAX_COUNTED))
