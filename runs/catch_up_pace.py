"""How fast missed times are made up for by the policy `all`. Pure.

A working span shrinks from its old or its new end, as the job wants it, by the runs that each step makes.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from jobs.models import JobStatus, Overlap
from jobs.stop_rules import Stops
from runs.due_jobs import DueJob, longest_reach
from runs.gaps import ALL, TOO_OLD, Span, suspending
from scheduler_project.sdk.ids import MILLISECOND

TOO_MANY = "more than catch_up.max"
CANCELLED = "cancelled"
# The runs of so long are made at once; and so often a job is looked at whose runs must end first.
STEP = timedelta(seconds=1)
# A job that is paused or cannot be planned is looked at less often, and those of a stop, who may be all, even less.
STANDING = timedelta(seconds=5)
STOPPED = timedelta(seconds=10)
MOST_AT_ONCE = 100


class Rest(NamedTuple):
    """What is left of a span: its next time to run is `cursor`, and not before `next_at`."""

    from_at: datetime
    to_at: datetime
    cursor: datetime
    made: int
    next_at: datetime


class Step(NamedTuple):
    times: list[datetime]
    # What gets no run after all.
    told: list[Span]
    # None: nothing is left.
    rest: Rest | None
    # When the job may have its next run, of whichever span.
    next_at: datetime


def advance(job: DueJob, rest: Rest, stops: Stops, now: datetime) -> Step:
    """The next runs of a span whose pace allows one."""
    if job.status == JobStatus.CANCELLED:
        return Step([], [_told(job, rest, CANCELLED)], None, now)
    if job.status in (JobStatus.PAUSED, JobStatus.UNRUNNABLE):
        return _wait(rest, now + STANDING)
    one_by_one = job.overlap != Overlap.ALLOW_ALL
    if _is_stopped(job, stops, now):
        return _wait(rest, now + STOPPED)
    if one_by_one and job.busy:
        return _wait(rest, now + STEP)
    told, left = _within_reach(job, rest, now)
    if left is None:
        return Step([], told, None, now)
    left = _begun_where_it_goes_on(job, left)
    pace = timedelta(minutes=1) / job.catch_up.per_minute
    most = min(max(1, STEP // pace), MOST_AT_ONCE, job.catch_up.most - left.made)
    times, follows = _next_times(job, left, 1 if one_by_one else most)
    next_at = now + pace * len(times)
    if follows is None:
        return Step(times, told, None, next_at)
    left = _shrunk(job, left, follows, len(times))._replace(next_at=next_at)
    if left.made >= job.catch_up.most:
        return Step(times, [*told, _told(job, left, TOO_MANY)], None, next_at)
    return Step(times, told, left, next_at)


def _is_stopped(job: DueJob, stops: Stops, now: datetime) -> bool:
    held = stops.holds(job.tenant_id, job.pool_id, job.tags, now)
    return held is not None or suspending(job, stops, now) is not None


def _wait(rest: Rest, until: datetime) -> Step:
    return Step([], [], rest._replace(next_at=until), until)


def _within_reach(job: DueJob, rest: Rest, now: datetime) -> tuple[list[Span], Rest | None]:
    """A slow pace may let the oldest times fall out of reach meanwhile."""
    reach = now - longest_reach()
    if rest.from_at >= reach:
        return [], rest
    first = job.first_time(reach, rest.to_at)
    told = [Span(job, rest.from_at, first or rest.to_at, TOO_OLD, ALL)]
    if first is None:
        return told, None
    return told, rest._replace(from_at=first, cursor=max(first, rest.cursor))


def _begun_where_it_goes_on(job: DueJob, rest: Rest) -> Rest:
    """At the old or the new end. An edit of the order leaves the cursor at the other one, with all the rest beyond."""
    if not job.catch_up.newest_first:
        return rest._replace(cursor=rest.from_at)
    if rest.cursor + MILLISECOND == rest.to_at:
        return rest
    newest = job.last_time(rest.from_at, rest.to_at) or rest.from_at
    return rest._replace(cursor=newest, to_at=newest + MILLISECOND)


def _next_times(job: DueJob, rest: Rest, most: int) -> tuple[list[datetime], datetime | None]:
    """From the cursor on, and the one that follows them."""
    times: list[datetime] = []
    follows: datetime | None = rest.cursor
    while follows is not None and len(times) < most:
        times.append(follows)
        if job.catch_up.newest_first:
            follows = job.last_time(rest.from_at, follows)
        else:
            follows = job.first_time(follows + MILLISECOND, rest.to_at)
    return times, follows


def _shrunk(job: DueJob, rest: Rest, cursor: datetime, made: int) -> Rest:
    if job.catch_up.newest_first:
        return rest._replace(to_at=cursor + MILLISECOND, cursor=cursor, made=rest.made + made)
    return rest._replace(from_at=cursor, cursor=cursor, made=rest.made + made)


def _told(job: DueJob, rest: Rest, reason: str) -> Span:
    return Span(job, rest.from_at, rest.to_at, reason)
