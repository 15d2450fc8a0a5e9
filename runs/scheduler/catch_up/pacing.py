"""Pace how fast missed times are made up for by the policy `all`. Pure.

A working span shrinks from its old or its new end, as the job wants it, by the runs that each step makes.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from jobs.models import OVERLAP_POLICIES, JobStatus
from jobs.suspensions.rules import SuspensionSet
from runs.reasons import Reason
from runs.scheduler.trigger.due_job import DueJob, longest_reach
from runs.scheduler.trigger.missed import Span, suspending, within_reach
from scheduler_project.sdk.ids import MILLISECOND

# A step makes the runs of this long at once; a job whose runs must end first is checked this often.
STEP = timedelta(seconds=1)
# A paused or unplannable job is checked less often, and jobs under a suspension, which may be all, even less.
STANDING = timedelta(seconds=5)
STOPPED = timedelta(seconds=10)
MAX_AT_ONCE = 100


class Rest(NamedTuple):
    """The rest of a span: its next time to run is `cursor`."""

    begins_at: datetime
    ends_at: datetime
    cursor: datetime
    made: int


class PacedStep(NamedTuple):
    times: list[datetime]
    # What gets no run after all.
    missed: list[Span]
    # None: nothing is left.
    rest: Rest | None
    # When the job may have its next run, of whichever span.
    next_at: datetime


def advance(job: DueJob, rest: Rest, suspensions: SuspensionSet, now: datetime) -> PacedStep:
    """Return the next runs of a span whose pace allows one."""
    if job.status == JobStatus.CANCELLED:
        return PacedStep([], [Span(job, rest.begins_at, rest.ends_at, Reason.JOB_ENDED)], None, now)
    if job.status in (JobStatus.PAUSED, JobStatus.UNRUNNABLE):
        return PacedStep([], [], rest, now + STANDING)
    one_by_one = OVERLAP_POLICIES[job.overlap].counts_unfinished
    held = suspensions.holds(job.tenant_id, job.pool_id, job.id, job.tags, now)
    if held is not None or suspending(job, suspensions, now) is not None:
        return PacedStep([], [], rest, now + STOPPED)
    if one_by_one and job.busy:
        return PacedStep([], [], rest, now + STEP)
    # The oldest times may have fallen out of reach meanwhile, as under a slow pace.
    first, missed = within_reach(job, rest.begins_at, rest.ends_at, now - longest_reach())
    if first is None:
        return PacedStep([], missed, None, now)
    left = _begun_where_it_goes_on(job, rest._replace(begins_at=first, cursor=max(first, rest.cursor)))
    pace = timedelta(minutes=1) / job.catch_up.per_minute
    most = min(max(1, STEP // pace), MAX_AT_ONCE, job.catch_up.most - left.made)
    times, follows = _next_times(job, left, 1 if one_by_one else most)
    next_at = now + pace * len(times)
    if follows is None:
        return PacedStep(times, missed, None, next_at)
    end = {"ends_at": follows + MILLISECOND} if job.catch_up.newest_first else {"begins_at": follows}
    left = left._replace(cursor=follows, made=left.made + len(times), **end)
    if left.made >= job.catch_up.most:
        missed.append(Span(job, left.begins_at, left.ends_at, Reason.CATCH_UP_MAX))
        return PacedStep(times, missed, None, next_at)
    return PacedStep(times, missed, left, next_at)


def _begun_where_it_goes_on(job: DueJob, rest: Rest) -> Rest:
    """Put the cursor at the old or the new end, as the job's order wants it.

    An edit of the order leaves the cursor at the other end, with all the rest beyond it.
    """
    if not job.catch_up.newest_first:
        return rest._replace(cursor=rest.begins_at)
    if rest.cursor + MILLISECOND == rest.ends_at:
        return rest
    newest = job.last_time(rest.begins_at, rest.ends_at) or rest.begins_at
    return rest._replace(cursor=newest, ends_at=newest + MILLISECOND)


def _next_times(job: DueJob, rest: Rest, most: int) -> tuple[list[datetime], datetime | None]:
    """Return the times from the cursor on, and the one that follows them."""
    times: list[datetime] = []
    follows: datetime | None = rest.cursor
    while follows is not None and len(times) < most:
        times.append(follows)
        if job.catch_up.newest_first:
            follows = job.last_time(rest.begins_at, follows)
        else:
            follows = job.first_time(follows + MILLISECOND, rest.ends_at)
    return times, follows
