"""What one look at a due job decides: which of its planned times get a run, which were missed, and the next one.

Pure. The next planned time follows from the previous planned time, never from the clock on the wall.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from django.conf import settings

from jobs.models import Effect
from jobs.stop_rules import StopRow, Stops
from runs.due_jobs import DueJob, longest_reach
from runs.gaps import DOWNTIME, NO_STOPS, SKIP, TOO_OLD, Piece, Span, cut, make_up, open_span, suspending
from scheduler_project.sdk.ids import MILLISECOND, whole_milliseconds

# A job that fires every second and was due all through the grace has no more times than this in one visit.
MOST_TIMES_IN_A_VISIT = 4000
MOVED = "moved"
FLEXIBLE = "flexible window"


class Change(NamedTuple):
    """A single planned time that somebody skipped (`moved_to` is None) or moved."""

    id: int
    planned_at: datetime
    moved_to: datetime | None
    made_by: str
    note: str
    done: bool

    @property
    def skips(self) -> bool:
        return self.moved_to is None and not self.done

    @property
    def reason(self) -> str:
        what = "skipped" if self.moved_to is None else MOVED
        by = f" by {self.made_by}" if self.made_by else ""
        return f"{what}{by}: {self.note}" if self.note else f"{what}{by}"


class Special(NamedTuple):
    """What sets a planned time apart: it goes later or earlier than planned, or not at all, and why."""

    available_at: datetime
    reason: str
    skipped: bool = False


class MissedBefore(NamedTuple):
    """Times before this instant were missed: why, and by which policy they are made up for. None: by the job's."""

    at: datetime
    reason: str = DOWNTIME
    policy: str | None = None


@dataclass(slots=True)
class Visit:
    """What one look at a due job decided: the whole of its due and missed times is settled by it."""

    job: DueJob
    times: list[datetime] = field(default_factory=list)
    catch_up: bool = False
    special: dict[datetime, Special] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    done_changes: list[int] = field(default_factory=list)
    next_at: datetime | None = None

    @property
    def finishes(self) -> bool:
        return self.next_at is None and self.job.active

    def is_skipped(self, planned_at: datetime) -> bool:
        return planned_at in self.special and self.special[planned_at].skipped

    @property
    def stops(self) -> set[int]:
        return {span.stop_id for span in self.spans if span.stop_id is not None}


def visit(
    job: DueJob,
    now: datetime,
    grace: timedelta,
    stops: Stops = NO_STOPS,
    changes: Sequence[Change] = (),
) -> Visit:
    """Pure: which runs, which gap, which next time.

    1. Planned times younger than the grace get a run each, unless a stop or a change of that time says otherwise.
    2. Older ones were missed: where a stop suspends them they wait for its end, elsewhere the catch-up policy decides.
    3. A time that was moved runs at its new instant, under its own identity.
    """
    found = Visit(job)
    if not job.active:
        return found
    fresh_from = now - grace
    due_from = first = _first_regular(job, changes) if changes else job.due_at
    if first is not None and first < fresh_from:
        first = job.next_time(fresh_from - MILLISECOND)
    while first is not None and first <= now and len(found.times) < MOST_TIMES_IN_A_VISIT:
        found.times.append(first)
        first = job.next_time(first)
    found.next_at = first
    missed_until = found.times[0] if found.times else whole_milliseconds(now)
    fresh = bool(found.times)
    if changes:
        _skip_changed(found, changes)
    if stops and found.times:
        _suspend(found, stops, without={change.planned_at for change in changes})
    if due_from is not None and due_from < fresh_from:
        pieces = cut(job, due_from, missed_until, stops, _changed(changes))
        _settle_pieces(found, pieces, now, DOWNTIME, superseded=fresh)
    if changes:
        _move(found, changes, now, MissedBefore(fresh_from), stops)
    if job.spreads and not found.catch_up:
        _spread(found)
    return found


def settle_missed(
    job: DueJob,
    until: datetime,
    now: datetime,
    reason: str,
    stops: Stops = NO_STOPS,
    changes: Sequence[Change] = (),
    policy: str | None = None,
) -> Visit:
    """Pure: all planned times of the job from its `due_at` to `until` were missed, for a reason of its own."""
    found = Visit(job)
    first = job.first_time(job.due_at, until)
    if first is not None:
        pieces = cut(job, first, until, stops, _changed(changes))
        _settle_pieces(found, pieces, now, reason, policy=policy)
    _move(found, changes, now, MissedBefore(now, reason, policy), stops)
    return found


def tell_all(job: DueJob, until: datetime, reason: str, changes: Sequence[Change] = ()) -> Visit:
    """Pure: nobody can reckon the planned times of the job from its `due_at` to `until`, so all of it is told.

    A changed time that has come is told with it; one that had its run before, or is moved to later, is left out.
    """
    found, apart = Visit(job), list[datetime]()
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


def next_clock(regular: datetime | None, changes: Iterable[Change]) -> datetime | None:
    """What the clock of a job is set to: its next planned time, or the earliest that one of them was moved to."""
    moves = [change.moved_to for change in changes if change.moved_to is not None and not change.done]
    return min([*moves, *([] if regular is None else [regular])], default=None)


def _first_regular(job: DueJob, changes: Iterable[Change]) -> datetime | None:
    """The clock may stand at an instant that a planned time was moved to; everything planned before it is settled."""
    moved_to = {change.moved_to for change in changes if not change.done}
    if job.due_at not in moved_to:
        return job.due_at
    # It may be older than the schedule, which planned nothing up to its anchor.
    return job.next_time(max(job.due_at - MILLISECOND, job.anchor_at))


def _changed(changes: Iterable[Change]) -> Collection[datetime]:
    return {change.planned_at for change in changes}


def _skip_changed(found: Visit, changes: Iterable[Change]) -> None:
    """A time that was moved is pending until then, or had its run before; one that was skipped gets a row."""
    planned = {change.planned_at: change for change in changes}
    kept = []
    for at in found.times:
        change = planned.get(at)
        if change is None or change.skips:
            kept.append(at)
    found.times = kept
    for change in changes:
        if change.skips and change.planned_at in kept:
            found.special[change.planned_at] = Special(change.planned_at, change.reason, skipped=True)
            found.done_changes.append(change.id)


def _suspend(found: Visit, stops: Stops, without: Collection[datetime]) -> None:
    """Fresh times under a stop get no run; those that follow one another share a span."""
    job, kept, pieces = found.job, [], list[Piece]()
    follows: datetime | None = None
    for at in found.times:
        stop = None if at in without else suspending(job, stops, at)
        if stop is None:
            kept.append(at)
            continue
        if pieces and pieces[-1].stop == stop and follows == at:
            pieces[-1] = pieces[-1]._replace(to_at=at + MILLISECOND)
        else:
            pieces.append(Piece(at, at + MILLISECOND, stop))
        follows = job.next_time(at)
    found.times = kept
    found.spans += [open_span(job, piece) for piece in pieces]


def _settle_pieces(
    found: Visit,
    pieces: Sequence[Piece],
    now: datetime,
    reason: str,
    *,
    policy: str | None = None,
    superseded: bool = False,
) -> None:
    """At most the last of the missed times still runs at once, and only if none is fresh."""
    job = found.job
    found.spans += [open_span(job, piece) for piece in pieces if piece.stop is not None]
    missed = [piece for piece in pieces if piece.stop is None]
    made_up = make_up(job, missed, now, reason, policy=policy, superseded=superseded)
    found.spans += made_up.spans
    if made_up.run_at is not None:
        found.times, found.catch_up = [made_up.run_at], True


def _move(found: Visit, changes: Iterable[Change], now: datetime, missed: MissedBefore, stops: Stops) -> None:
    """Changed times of the gap, and those that were moved to by now."""
    pending = []
    for change in changes:
        if change.done:
            continue
        if change.moved_to is None:
            if change.planned_at < missed.at:
                _tell_skipped(found, change, now)
        elif change.moved_to > now:
            pending.append(change)
        else:
            _run_moved(found, change, change.moved_to, now, missed, stops)
    found.times.sort(key=lambda at: found.special[at].available_at if at in found.special else at)
    found.next_at = next_clock(found.next_at, pending)


def _tell_skipped(found: Visit, change: Change, now: datetime) -> None:
    """As a row like any other, if there is still a partition for it."""
    job, at = found.job, change.planned_at
    found.done_changes.append(change.id)
    if at < now - longest_reach():
        found.spans.append(Span(job, at, at + MILLISECOND, TOO_OLD))
    else:
        found.times.append(at)
        found.special[at] = Special(at, change.reason, skipped=True)


def _run_moved(
    found: Visit, change: Change, moved_to: datetime, now: datetime, missed: MissedBefore, stops: Stops
) -> None:
    """At its new instant a moved time meets the same stops and outages as any other."""
    job, at = found.job, change.planned_at
    found.done_changes.append(change.id)
    if at > now + timedelta(days=settings.PARTITIONS_AHEAD_DAYS - 1):
        raise ValueError(f"{at} is too far ahead to be moved to {moved_to}")
    late, policy = moved_to < missed.at, missed.policy or job.catch_up.policy
    if at < now - longest_reach():
        found.spans.append(Span(job, at, at + MILLISECOND, TOO_OLD))
        return
    if late and (policy == SKIP or now - moved_to > job.catch_up.window):
        found.spans.append(Span(job, at, at + MILLISECOND, missed.reason))
        return
    found.times.append(at)
    found.special[at] = _arrival(suspending(job, stops, moved_to), change, now if late else moved_to)


def _arrival(stop: StopRow | None, change: Change, at: datetime) -> Special:
    """Of a stop that makes up for its times one moved into it is held by dispatch, like a run somebody asked for."""
    if stop is None or stop.effect == Effect.CATCH_UP:
        return Special(at, change.reason)
    if stop.effect == Effect.RUN_AFTER and stop.over_at is not None:
        return Special(stop.over_at, stop.reason)
    return Special(at, stop.reason, skipped=True)


def _spread(found: Visit) -> None:
    """Over the flexible window of the schedule; what is made up for goes at once."""
    for at in found.times:
        if at not in found.special:
            found.special[at] = Special(found.job.jittered(at), FLEXIBLE)
