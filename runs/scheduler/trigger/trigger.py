"""Turn due planned times into runs. No other module does.

A clock is locked before its job is read, so an edit (which locks it too) comes wholly before or wholly after.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from uuid import UUID

import psycopg
from django.conf import settings

from jobs.models import COUNTING_WITHOUT_GATE
from jobs.suspensions.rules import SuspensionSet
from runs.events import Event, JobUnrunnable, RunsCreated, emit
from runs.reasons import Reason
from runs.scheduler.partitions.lock_session import refuse_other_session
from runs.scheduler.trigger import missed_spans as spans
from runs.scheduler.trigger.decision import TriggerDecision, decide, note_all
from runs.scheduler.trigger.due_job import DueJob
from runs.scheduler.trigger.new_runs import collisions, insert_runs, new_runs
from runs.scheduler.trigger.overrides import ChangedTime
from runs.scheduler.trigger.suspensions import read_suspensions
from runs.sql import Connection, array, change, hexed, instant, rows
from runs.states import Trigger
from scheduler_project.sdk.ids import EPOCH, MILLISECOND, whole_milliseconds

# This part of a pass works off the backlog, whatever else is due now.
MIN_BACKLOG = 8
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
    unrunnable: int = 0
    # A slice gave as many clocks as it may in one pass: there may be more.
    more: bool = False
    # The caller holds the row of a job and waits for locks; a pass over many jobs waits for none.
    waits: bool = False
    # Reported once the transaction has committed.
    events: list[Event] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        return {
            "runs": self.runs,
            "skipped": self.skipped,
            "missed_spans": self.spans,
            "finished_jobs": self.finished,
            "unrunnable_jobs": self.unrunnable,
        }

    def all_events(self) -> list[Event]:
        if not self.runs and not self.skipped:
            return self.events
        return [RunsCreated(trigger=Trigger.SCHEDULE, runs=self.runs, skipped=self.skipped), *self.events]


def trigger_due(
    connection: Connection,
    slices: Collection[int],
    batch: int = 2000,
    pid: int | None = None,
    since: datetime = EPOCH,
) -> Triggered:
    """Make one pass over the clocks of these slices that are due at `since` or later.

    1. Make sure that this is still the session which holds the slices.
    2. Lock due clocks, what is due now before what was missed, leaving out those that an edit has locked.
    3. Read their jobs, decide in Python, write runs, live runs, spans and clocks: one transaction.
    """
    with connection.transaction():
        session, now = rows(connection, "session_and_time")[0]
        refuse_other_session(session, pid)
        done = Triggered(now)
        if not slices:
            return done
        fresh_from = now - grace()
        due = _lock_due(connection, slices, max(fresh_from, since), now, batch, done)
        if since < fresh_from:
            backlog = max(batch - len(due), batch // MIN_BACKLOG, 1)
            due |= _lock_due(connection, slices, since, fresh_from - MICROSECOND, backlog, done)
        if due:
            _settle(connection, due, done)
    # After the commit: what a rolled-back pass decided has not happened.
    emit(*done.all_events())
    return done


def _lock_due(
    connection: Connection,
    slices: Collection[int],
    since: datetime,
    until: datetime,
    batch: int,
    done: Triggered,
) -> dict[UUID, datetime]:
    """Lock clocks due in [since, until], a fair share of each slice."""
    share = -(-batch // len(slices))
    values = {"slices": sorted(slices), "since": since, "until": until, "share": share}
    due = rows(connection, "lock_due_clocks", values)
    per_slice = Counter(number for _, _, number in due)
    done.more |= any(count >= share for count in per_slice.values())
    return {job: at for job, at, _ in due}


def trigger_job(connection: Connection, job_id: UUID, now: datetime) -> Triggered:
    """Trigger what is due of one job by now, in the caller's transaction: an edit does so under the old schedule.

    The caller holds the job's clock, and sets the next time under the new schedule afterwards.
    """
    done = Triggered(now, waits=True)
    with connection.transaction():
        # Once more if a suspension that it relied on was lifted at that moment.
        while due := rows(connection, "lock_due_clock", {"job": job_id, "now": now}):
            _settle(connection, {job: at for job, at, _ in due}, done)
    return done


def grace() -> timedelta:
    """Return the grace: planned times younger than this each get their run; older ones were missed."""
    return timedelta(seconds=settings.MISFIRE_GRACE_SECONDS)


def _settle(connection: Connection, due: dict[UUID, datetime], done: Triggered) -> None:
    suspensions = read_suspensions(connection, done.now)
    changes = changes_of(connection, due)
    decisions, late_after = [], grace()
    for job in due_jobs(connection, due, suspensions):
        try:
            decisions.append(
                decide(job, done.now, late_after, suspensions, changes.get(job.id, ()) if changes else ())
            )
        except Exception as error:  # a schedule that raises makes its job unrunnable, whatever it raises
            _make_unrunnable(connection, job, f"The next time cannot be reckoned: {error}", done)
    halve(
        connection,
        decisions,
        lambda some: _write(connection, some, suspensions, done),
        lambda found, reason: _make_unrunnable(connection, found.job, reason, done),
    )


def due_jobs(
    connection: Connection, due: Mapping[UUID, datetime], suspensions: SuspensionSet
) -> Iterator[DueJob]:
    """Read the jobs of locked clocks, each with the instant at which its clock stands."""
    values = {
        "jobs": array(due, hexed),
        "need_tags": suspensions.need_tags,
        "counting": COUNTING_WITHOUT_GATE,
    }
    for row in rows(connection, "jobs_of_clocks", values):
        yield DueJob(due[row[0]].astimezone(timezone.utc), *row)


def changes_of(connection: Connection, due: Mapping[UUID, datetime]) -> dict[UUID, list[ChangedTime]]:
    """Return single times that were changed: those still open, and others since the clock's present instant."""
    changes: dict[UUID, list[ChangedTime]] = {}
    if not rows(connection, "changes_exist")[0][0]:
        return changes
    values = {"jobs": array(due, hexed), "due_at": array(due.values(), instant)}
    for job, *row in rows(connection, "changes_of_clocks", values):
        changes.setdefault(job, []).append(ChangedTime(*row))
    return changes


def halve(
    connection: Connection,
    decisions: Sequence[TriggerDecision],
    write: Callable[[Sequence[TriggerDecision]], None],
    give_up: Callable[[TriggerDecision, str], None],
) -> None:
    """Halve a batch that the database refuses until the culprit is alone.

    Time-outs and lost connections are no job's fault and end the pass.
    """
    if not decisions:
        return
    try:
        with connection.transaction():
            write(decisions)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        if error.sqlstate == "23514" and not error.diag.constraint_name:
            raise NoPartition(NoPartition.__doc__) from error
        if len(decisions) == 1:
            give_up(decisions[0], f"The database refuses its run: {error.diag.message_primary}")
            return
        middle = len(decisions) // 2
        halve(connection, decisions[:middle], write, give_up)
        halve(connection, decisions[middle:], write, give_up)


def _write(
    connection: Connection, decisions: Sequence[TriggerDecision], suspensions: SuspensionSet, done: Triggered
) -> None:
    finished = [found.job.id for found in decisions if found.finishes]
    left = _held(connection, finished, done)
    decisions = _without(left, decisions)
    written = write_runs(connection, decisions, suspensions, done.now, waits=done.waits)
    left |= written.left
    decisions = _without(written.left, decisions)
    finished = [job for job in finished if job not in left]
    moved = {
        "job_id": array((found.job.id for found in decisions), hexed),
        "next_run_at": array((found.next_at for found in decisions), instant),
    }
    change(connection, "move_clocks", moved)
    if finished:
        change(connection, "finish_jobs", {"jobs": finished})
    done.runs += written.runs
    done.skipped += written.skipped
    done.spans += written.spans
    done.finished += len(finished)
    done.events += written.events


def _without(left: Collection[UUID], decisions: Sequence[TriggerDecision]) -> Sequence[TriggerDecision]:
    return [found for found in decisions if found.job.id not in left] if left else decisions


@dataclass(slots=True)
class Written:
    runs: int = 0
    skipped: int = 0
    spans: int = 0
    # Jobs whose gate, runs or suspension another session holds; nothing was written for them.
    left: set[UUID] = field(default_factory=set)
    # Reported by the caller, which commits.
    events: list[Event] = field(default_factory=list)


def write_runs(
    connection: Connection,
    decisions: Sequence[TriggerDecision],
    suspensions: SuspensionSet,
    now: datetime,
    *,
    waits: bool = False,
) -> Written:
    """Write what was decided, except for the clocks, which the caller holds: runs, spans, and changes done."""
    done = Written()
    if suspensions:
        done.left |= spans.hold_suspensions(connection, decisions, suspensions, waits=waits)
        decisions = _without(done.left, decisions)
    made = new_runs(connection, decisions, now, waits=waits)
    done.left |= made.left
    decisions = _without(made.left, decisions)
    inserted = insert_runs(connection, made.new)
    noted = [span for found in decisions for span in found.spans]
    if len(inserted) < len(made.new):
        missed, taken = collisions(connection, [run for run in made.new if run.id not in inserted], decisions)
        noted += missed
        done.events += taken
    spans.write(connection, noted)
    changed = [number for found in decisions for number in found.done_changes]
    if changed:
        change(connection, "end_changes", {"changes": changed})
    done.skipped = sum(1 for run in made.new if run.state and run.id in inserted)
    done.runs = len(inserted) - done.skipped
    done.spans = len(noted)
    done.events += [event for found in decisions if found.events for event in found.events]
    return done


def _held(connection: Connection, jobs: Sequence[UUID], done: Triggered) -> set[UUID]:
    """Return the jobs whose rows another session holds, such as a run-now's; a later pass finds them due."""
    if not jobs or done.waits:
        return set()
    return set(jobs) - {job for (job,) in rows(connection, "lock_jobs", {"jobs": jobs})}


def _make_unrunnable(connection: Connection, job: DueJob, reason: str, done: Triggered) -> None:
    if _held(connection, [job.id], done):
        return
    end = max(whole_milliseconds(done.now), job.due_at + MILLISECOND)
    changes = changes_of(connection, {job.id: job.due_at})
    noted = note_all(job, end, Reason.UNRUNNABLE, changes.get(job.id, ()))
    spans.write(connection, noted.spans)
    if noted.done_changes:
        change(connection, "end_changes", {"changes": noted.done_changes})
    change(
        connection,
        "make_unrunnable",
        {"job": job.id, "reason": reason.replace("\x00", "")[:2000], "end": end},
    )
    done.unrunnable += 1
    done.events.append(JobUnrunnable(job_id=job.id, reason=reason))
