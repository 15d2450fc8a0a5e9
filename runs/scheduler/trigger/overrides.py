"""Decide about planned times that a person skipped or moved. Pure."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from jobs.models import Effect
from jobs.suspensions.rules import SuspensionRow, SuspensionSet
from runs.reasons import Reason
from runs.scheduler.trigger.due_job import DueJob, longest_reach
from runs.scheduler.trigger.missed import SKIP, Span, suspending
from scheduler_project.sdk.ids import MILLISECOND


class ChangedTime(NamedTuple):
    """A single planned time that a person skipped (`moved_to` is None) or moved."""

    id: int
    planned_at: datetime
    moved_to: datetime | None
    created_by: str
    reason: str
    done: bool

    @property
    def skips(self) -> bool:
        return self.moved_to is None and not self.done

    def is_to_come(self, now: datetime, missed_before: datetime) -> bool:
        """Return whether there is nothing to settle: it is done, it is planned for later, or it was moved to later."""
        if self.moved_to is None:
            return self.done or self.planned_at >= missed_before
        return self.done or self.moved_to > now

    @property
    def stored_reason(self) -> str:
        reason = Reason.SKIPPED if self.moved_to is None else Reason.MOVED
        by = f"by {self.created_by}" if self.created_by else ""
        return reason.with_words(", ".join(filter(None, (by, self.reason))))


class Special(NamedTuple):
    """What sets a planned time apart: it goes later or earlier than planned, or not at all, and why."""

    available_at: datetime
    reason: str
    skipped: bool = False


class MissedBefore(NamedTuple):
    """Times before this instant were missed, for this reason, and made up for by this policy; None: the job's."""

    at: datetime
    reason: str = Reason.DOWNTIME
    policy: str | None = None


def next_clock(regular: datetime | None, changes: Iterable[ChangedTime]) -> datetime | None:
    """Return what the job's clock is set to: its next planned time, or the earliest that one was moved to."""
    moves = [change.moved_to for change in changes if change.moved_to is not None and not change.done]
    return min([*moves, *([] if regular is None else [regular])], default=None)


def first_regular(job: DueJob, changes: Iterable[ChangedTime]) -> datetime | None:
    """Return the first regular time that is due.

    The clock may stand at an instant that a planned time was moved to; everything planned before it is settled.
    """
    moved_to = {change.moved_to for change in changes if not change.done}
    if job.due_at not in moved_to:
        return job.due_at
    # It may be older than the schedule, which planned nothing up to its anchor.
    return job.next_time(max(job.due_at - MILLISECOND, job.anchor_at))


def outcome_of(
    change: ChangedTime, job: DueJob, now: datetime, missed: MissedBefore, suspensions: SuspensionSet
) -> Special | Span:
    """Run a moved time, and give a skipped one a row like any other; without a partition for it, record it as missed.

    At its new instant a moved time meets the same suspensions and outages as any other.
    """
    at, moved_to = change.planned_at, change.moved_to
    if at > now + timedelta(days=settings.PARTITIONS_AHEAD_DAYS - 1):
        raise ValueError(f"{at} is too far ahead to be moved to {moved_to}")
    if at < now - longest_reach():
        return Span(job, at, at + MILLISECOND, Reason.TOO_OLD)
    if moved_to is None:
        return Special(at, change.stored_reason, skipped=True)
    late, policy = moved_to < missed.at, missed.policy or job.catch_up.policy
    if late and (policy == SKIP or now - moved_to > job.catch_up.window):
        return Span(job, at, at + MILLISECOND, missed.reason)
    return _arrival(suspending(job, suspensions, moved_to), change, now if late else moved_to)


def _arrival(suspension: SuspensionRow | None, change: ChangedTime, at: datetime) -> Special:
    """Say when a moved time runs under the suspension at its new instant.

    Under one that makes up for its times, dispatch holds the run, as it holds a requested one.
    """
    if suspension is None or suspension.effect == Effect.CATCH_UP:
        return Special(at, change.stored_reason)
    if suspension.effect == Effect.RUN_AFTER and suspension.over_at is not None:
        return Special(suspension.over_at, suspension.stored_reason)
    return Special(at, suspension.stored_reason, skipped=True)
