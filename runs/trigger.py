"""From due job to run row. The one place where planned times become runs.

A clock is locked before its job is read, so an edit (which locks it too) comes wholly before or wholly after.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from uuid import UUID

import psycopg
from django.conf import settings

from jobs.stop_rules import Stops
from runs import spans
from runs.births import births, collisions, insert_runs
from runs.due_jobs import DueJob
from runs.queries import Connection, array, change, hexed, instant, rows
from runs.slices import LostLocks
from runs.stops import read_stops
from runs.visits import Change, Visit, tell_all, visit
from scheduler_project.sdk.ids import EPOCH, MILLISECOND, whole_milliseconds

logger = logging.getLogger(__name__)

# Of a pass, whatever is due now: a backlog is worked off too.
LEAST_BACKLOG = 8
MICROSECOND = timedelta(microseconds=1)


class NoPartition(Exception):
    """There is no partition for a planned time; that is the platform's fault, not a job's."""


@dataclass(slots=True)
class Triggered:
    now: datetime
    runs: int = 0
    skipped: int = 0
    spans: int = 0
    finished: int = 0
    parked: int = 0
    # A slice gave as many clocks as it may in one pass: there may be more.
    more: bool = False
    # For whoever holds the row of a job; a pass over many waits for nobody.
    waits: bool = False


def trigger_due(
    connection: Connection, slices: Collection[int], batch: int = 2000, pid: int | None = None
) -> Triggered:
    """One pass over the slices held.

    1. Make sure that this is still the session which holds the slices.
    2. Lock due clocks, what is due now before what was missed, leaving out those somebody is editing.
    3. Read their jobs, decide in Python, write runs, live runs, spans and clocks: one transaction.
    """
    with connection.transaction():
        session, now = rows(connection, "session_and_time")[0]
        if pid is not None and session != pid:
            raise LostLocks(LostLocks.__doc__)
        done = Triggered(now)
        if not slices:
            return done
        fresh_from = now - grace()
        due = _lock_due(connection, slices, fresh_from, now, batch, done)
        backlog = max(batch - len(due), batch // LEAST_BACKLOG, 1)
        due |= _lock_due(connection, slices, EPOCH, fresh_from - MICROSECOND, backlog, done)
        if due:
            _settle(connection, due, done)
    return done


def _lock_due(
    connection: Connection,
    slices: Collection[int],
    since: datetime,
    until: datetime,
    batch: int,
    done: Triggered,
) -> dict[UUID, datetime]:
    """Clocks due in [since, until], a fair share of each slice."""
    share = -(-batch // len(slices))
    values = {"slices": sorted(slices), "since": since, "until": until, "share": share}
    due = rows(connection, "lock_due_clocks", values)
    per_slice = Counter(number for _, _, number in due)
    done.more |= any(count >= share for count in per_slice.values())
    return {job: at for job, at, _ in due}


def trigger_job(connection: Connection, job_id: UUID, now: datetime) -> Triggered:
    """What is due of one job by now, in the caller's transaction: an edit calls it under the old schedule.

    The caller holds the job's clock, and sets the next time under the new schedule afterwards.
    """
    done = Triggered(now, waits=True)
    with connection.transaction():
        # Once more if a stop that it relied on was lifted at that moment.
        while due := rows(connection, "lock_due_clock", {"job": job_id, "now": now}):
            _settle(connection, {job: at for job, at, _ in due}, done)
    return done


def grace() -> timedelta:
    """Planned times younger than this each get their run; older ones were missed."""
    return timedelta(seconds=settings.MISFIRE_GRACE_SECONDS)


def _settle(connection: Connection, due: dict[UUID, datetime], done: Triggered) -> None:
    stops = read_stops(connection, done.now)
    changes = changes_of(connection, due)
    visits, late_after = [], grace()
    values = {"jobs": array(due, hexed), "need_tags": stops.need_tags}
    for row in rows(connection, "jobs_of_clocks", values):
        job = DueJob(due[row[0]].astimezone(timezone.utc), *row)
        try:
            visits.append(visit(job, done.now, late_after, stops, changes.get(job.id, ()) if changes else ()))
        except Exception as error:  # a schedule that raises is parked, whatever it raises
            _park(connection, job, f"The next time cannot be reckoned: {error}", done)
    _write_or_halve(connection, visits, stops, done)


def changes_of(connection: Connection, due: Mapping[UUID, datetime]) -> dict[UUID, list[Change]]:
    """Single times that somebody changed: those still open, and others since the clock stood where it stands."""
    changes: dict[UUID, list[Change]] = {}
    if not rows(connection, "changes_exist")[0][0]:
        return changes
    values = {"jobs": array(due, hexed), "due_at": array(due.values(), instant)}
    for job, *row in rows(connection, "changes_of_clocks", values):
        changes.setdefault(job, []).append(Change(*row))
    return changes


def _write_or_halve(connection: Connection, visits: Sequence[Visit], stops: Stops, done: Triggered) -> None:
    halve(
        connection,
        visits,
        lambda some: _write(connection, some, stops, done),
        lambda found, note: _park(connection, found.job, note, done),
    )


def halve(
    connection: Connection,
    visits: Sequence[Visit],
    write: Callable[[Sequence[Visit]], None],
    give_up: Callable[[Visit, str], None],
) -> None:
    """A batch the database refuses is halved until the culprit is alone; time-outs and lost connections are not
    anybody's fault and end the pass."""
    if not visits:
        return
    try:
        with connection.transaction():
            write(visits)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        if error.sqlstate == "23514" and not error.diag.constraint_name:
            raise NoPartition(NoPartition.__doc__) from error
        if len(visits) == 1:
            give_up(visits[0], f"The database refuses its run: {error.diag.message_primary}")
            return
        middle = len(visits) // 2
        halve(connection, visits[:middle], write, give_up)
        halve(connection, visits[middle:], write, give_up)


def _write(connection: Connection, visits: Sequence[Visit], stops: Stops, done: Triggered) -> None:
    finished = [found.job.id for found in visits if found.finishes]
    left = _held(connection, finished, done)
    visits = _without(left, visits)
    written = write_runs(connection, visits, stops, done.now, waits=done.waits)
    left |= written.left
    visits = _without(written.left, visits)
    finished = [job for job in finished if job not in left]
    change(
        connection,
        "move_clocks",
        {
            "job_id": array((found.job.id for found in visits), hexed),
            "next_run_at": array((found.next_at for found in visits), instant),
        },
    )
    if finished:
        change(connection, "finish_jobs", {"jobs": finished})
    done.runs += written.runs
    done.skipped += written.skipped
    done.spans += written.spans
    done.finished += len(finished)


def _without(left: Collection[UUID], visits: Sequence[Visit]) -> Sequence[Visit]:
    return [found for found in visits if found.job.id not in left] if left else visits


@dataclass(slots=True)
class Written:
    runs: int = 0
    skipped: int = 0
    spans: int = 0
    # Jobs whose gate, runs or stop somebody has in hand; nothing was written for them.
    left: set[UUID] = field(default_factory=set)


def write_runs(
    connection: Connection, visits: Sequence[Visit], stops: Stops, now: datetime, *, waits: bool = False
) -> Written:
    """What visits decided, but for the clocks, which the caller holds: runs, spans, and changes that are done."""
    done = Written()
    if stops:
        done.left |= spans.hold_stops(connection, visits, stops, waits=waits)
        visits = _without(done.left, visits)
    made = births(connection, visits, now, waits=waits)
    done.left |= made.left
    visits = _without(made.left, visits)
    inserted = insert_runs(connection, made.new)
    told = [span for found in visits for span in found.spans]
    if len(inserted) < len(made.new):
        told += collisions(connection, [run for run in made.new if run.id not in inserted], visits)
    spans.write(connection, told)
    changed = [number for found in visits for number in found.done_changes]
    if changed:
        change(connection, "end_changes", {"changes": changed})
    done.skipped = sum(1 for run in made.new if run.state and run.id in inserted)
    done.runs = len(inserted) - done.skipped
    done.spans = len(told)
    return done


def _held(connection: Connection, jobs: Sequence[UUID], done: Triggered) -> set[UUID]:
    """Those of the jobs whose rows are in somebody's hands, a run-now's above all: a later pass finds them due."""
    if not jobs or done.waits:
        return set()
    return set(jobs) - {job for (job,) in rows(connection, "lock_jobs", {"jobs": jobs})}


def _park(connection: Connection, job: DueJob, note: str, done: Triggered) -> None:
    if _held(connection, [job.id], done):
        return
    logger.error("job %s is unrunnable: %s", job.id, note)
    end = max(whole_milliseconds(done.now), job.due_at + MILLISECOND)
    changes = changes_of(connection, {job.id: job.due_at})
    told = tell_all(job, end, spans.UNRUNNABLE, changes.get(job.id, ()))
    spans.write(connection, told.spans)
    if told.done_changes:
        change(connection, "end_changes", {"changes": told.done_changes})
    change(connection, "park_job", {"job": job.id, "note": _storable(note), "end": end})
    done.parked += 1


def _storable(note: str) -> str:
    return note.replace("\x00", "")[:2000]
