"""Decide about one due job: which of its planned times get a run, which were missed, and which is the next one. Pure.

The next planned time follows from the previous planned time, never from the wall clock.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from jobs.suspensions.rules import SuspensionSet
from runs.events import Event
from runs.reasons import Reason
from runs.scheduler.trigger.due_job import DueJob
from runs.scheduler.trigger.missed import NO_SUSPENSIONS, Segment, Span, make_up, open_span, split, suspending
from runs.scheduler.trigger.overrides import (
    ChangedTime,
    MissedBefore,
    Special,
    first_regular,
    next_clock,
    outcome_of,
)
from scheduler_project.sdk.ids import MILLISECOND, whole_milliseconds

# A job that fires every second and was due all through the grace has no more times than this in one decision.
MAX_TIMES_AT_ONCE = 4000


@dataclass(slots=True)
class TriggerDecision:
    """The decision about one due job, which settles all of its due and missed times."""

    job: DueJob
    times: list[datetime] = field(default_factory=list)
    catch_up: bool = False
    special: dict[datetime, Special] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    done_changes: list[int] = field(default_factory=list)
    # Reported once what was decided is committed.
    events: Sequence[Event] = ()
    next_at: datetime | None = None

    @property
    def finishes(self) -> bool:
        return self.next_at is None and self.job.active

    def is_skipped(self, planned_at: datetime) -> bool:
        return planned_at in self.special and self.special[planned_at].skipped

    @property
    def suspensions(self) -> set[int]:
        return {span.suspension_id for span in self.spans if span.suspension_id is not None}


def decide(
    job: DueJob,
    now: datetime,
    grace: timedelta,
    suspensions: SuspensionSet = NO_SUSPENSIONS,
    changes: Sequence[ChangedTime] = (),
) -> TriggerDecision:
    """Decide which planned times get runs, what was missed, and what the next time is.

    1. Planned times younger than the grace get a run each, unless a suspension or a change of that time says otherwise.
    2. Older ones were missed: a suspension keeps them until its end, elsewhere the catch-up policy decides.
    3. A time that was moved runs at its new instant, under its own identity.
    """
    found = TriggerDecision(job)
    if not job.active:
        return found
    fresh_from = now - grace
    due_from = first = first_regular(job, changes) if changes else job.due_at
    if first is not None and first < fresh_from:
        first = job.next_time(fresh_from - MILLISECOND)
    while first is not None and first <= now and len(found.times) < MAX_TIMES_AT_ONCE:
        found.times.append(first)
        first = job.next_time(first)
    found.next_at = first
    missed_until = found.times[0] if found.times else whole_milliseconds(now)
    fresh = bool(found.times)
    changed = {change.planned_at for change in changes}
    if changes:
        _skip_changed(found, changes)
    if suspensions and found.times:
        _suspend(found, suspensions, without=changed)
    if due_from is not None and due_from < fresh_from:
        pieces = split(job, due_from, missed_until, suspensions, changed)
        _settle_pieces(found, pieces, now, Reason.DOWNTIME, superseded=fresh)
    if changes:
        _settle_changes(found, changes, now, MissedBefore(fresh_from), suspensions)
    if job.spreads and not found.catch_up:
        # Over the flexible window of the schedule; what is made up for goes at once.
        for at in found.times:
            found.special.setdefault(at, Special(job.jittered(at), Reason.FLEXIBLE_WINDOW))
    return found


def settle_missed(
    job: DueJob,
    until: datetime,
    now: datetime,
    reason: str,
    suspensions: SuspensionSet = NO_SUSPENSIONS,
    changes: Sequence[ChangedTime] = (),
    policy: str | None = None,
) -> TriggerDecision:
    """Decide that all planned times of the job from its `due_at` to `until` were missed, for one reason."""
    found = TriggerDecision(job)
    first = job.first_time(job.due_at, until)
    if first is not None:
        pieces = split(job, first, until, suspensions, {change.planned_at for change in changes})
        _settle_pieces(found, pieces, now, reason, policy=policy)
    _settle_changes(found, changes, now, MissedBefore(now, reason, policy), suspensions)
    return found


def note_all(
    job: DueJob, until: datetime, reason: str, changes: Sequence[ChangedTime] = ()
) -> TriggerDecision:
    """Note the whole of [due_at, until) as missed, because its planned times cannot be reckoned.

    A changed time that has come is noted with it; one that had its run before, or is moved to later, is left out.
    """
    found, apart = TriggerDecision(job), list[datetime]()
    for change in changes:
        comes_at = change.planned_at if change.moved_to is None else change.moved_to
        inside = job.due_at <= change.planned_at < until
        if change.done or comes_at >= until:
            apart += [change.planned_at] if inside else []
            continue
        found.done_changes.append(change.id)
        if not inside:
            found.spans.append(Span(job, change.planned_at, change.planned_at + MILLISECOND, reason))
    begin = job.due_at
    for end in [*sorted(apart), until]:
        if begin < end:
            found.spans.append(Span(job, begin, end, reason))
        begin = end + MILLISECOND
    return found


def _skip_changed(found: TriggerDecision, changes: Iterable[ChangedTime]) -> None:
    """Leave changed times out of the regular ones.

    A moved time is pending until then, or had its run before; a skipped one gets a row.
    """
    moved = {change.planned_at for change in changes if not change.skips}
    found.times = [at for at in found.times if at not in moved]
    for change in changes:
        if change.skips and change.planned_at in found.times:
            found.special[change.planned_at] = Special(change.planned_at, change.stored_reason, skipped=True)
            found.done_changes.append(change.id)


def _suspend(found: TriggerDecision, suspensions: SuspensionSet, without: Collection[datetime]) -> None:
    """Take fresh times under a suspension out of the runs; those that follow one another share a span."""
    job, kept, pieces = found.job, [], list[Segment]()
    follows: datetime | None = None
    for at in found.times:
        suspension = None if at in without else suspending(job, suspensions, at)
        if suspension is None:
            kept.append(at)
            continue
        if pieces and pieces[-1].suspension == suspension and follows == at:
            pieces[-1] = pieces[-1]._replace(ends_at=at + MILLISECOND)
        else:
            pieces.append(Segment(at, at + MILLISECOND, suspension))
        follows = job.next_time(at)
    found.times = kept
    found.spans += [open_span(job, piece) for piece in pieces]


def _settle_pieces(
    found: TriggerDecision,
    pieces: Sequence[Segment],
    now: datetime,
    reason: str,
    *,
    policy: str | None = None,
    superseded: bool = False,
) -> None:
    """Settle missed segments; at most the last missed time still runs at once, and only if none is fresh."""
    job = found.job
    found.spans += [open_span(job, piece) for piece in pieces if piece.suspension is not None]
    missed = [piece for piece in pieces if piece.suspension is None]
    made_up = make_up(job, missed, now, reason, policy=policy, superseded=superseded)
    found.spans += made_up.spans
    if made_up.run_at is not None:
        found.times, found.catch_up = [made_up.run_at], True


def _settle_changes(
    found: TriggerDecision,
    changes: Iterable[ChangedTime],
    now: datetime,
    missed: MissedBefore,
    suspensions: SuspensionSet,
) -> None:
    """Settle changed times that have come; a moved one that is to come may be the job's next time."""
    for change in changes:
        if change.is_to_come(now, missed.at):
            continue
        found.done_changes.append(change.id)
        outcome = outcome_of(change, found.job, now, missed, suspensions)
        if isinstance(outcome, Span):
            found.spans.append(outcome)
        else:
            found.times.append(change.planned_at)
            found.special[change.planned_at] = outcome
    found.times.sort(key=lambda at: found.special[at].available_at if at in found.special else at)
    pending = [change for change in changes if change.moved_to is not None and change.moved_to > now]
    found.next_at = next_clock(found.next_at, pending)
