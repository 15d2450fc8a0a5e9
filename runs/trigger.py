"""From due job to run row. The one place where planned times become runs.

A clock is locked before its job is read, so an edit (which locks it too) comes wholly before or wholly after.
The next planned time follows from the previous planned time, never from the clock on the wall.
"""

import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from django.conf import settings

from jobs import schedules
from runs.queries import Connection, array, change, hexed, instant, quoted, rows
from runs.slices import LostLocks
from runs.states import FinalState, Trigger
from scheduler_project.sdk.ids import MILLISECOND, milliseconds, run_id, whole_milliseconds

logger = logging.getLogger(__name__)

# A job that fires every second and was due all through the grace has no more times than this in one visit.
MOST_TIMES_IN_A_VISIT = 4000
HASHED = re.compile(r"(?<![A-Za-z])[Hh](?![A-Za-z])")


class NoPartition(Exception):
    """There is no partition for a planned time; that is the platform's fault, not a job's."""


class DueJob(NamedTuple):
    """A due clock, and the job it belongs to as it is now."""

    due_at: datetime
    id: UUID
    tenant_id: int
    pool_id: int
    version: int
    priority: int
    active: bool
    schedule: str | None
    anchor_at: datetime
    skips_overlap: bool
    policy: str
    window_seconds: float
    target_key: str
    gated: bool
    busy: bool


@dataclass(slots=True)
class Visit:
    """What one look at a due job decided: the whole of its due and missed times is settled by it."""

    job: DueJob
    times: list[datetime] = field(default_factory=list)
    catch_up: bool = False
    missed: tuple[datetime, datetime] | None = None
    next_at: datetime | None = None

    @property
    def finishes(self) -> bool:
        return self.next_at is None and self.job.active


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
    2. Lock due clocks, a fair share of each slice, leaving out those somebody is editing.
    3. Read their jobs, decide in Python, write runs, live runs, spans and clocks: one transaction.
    """
    with connection.transaction():
        session, now = rows(connection, "session_and_time")[0]
        if pid is not None and session != pid:
            raise LostLocks(LostLocks.__doc__)
        done = Triggered(now)
        if not slices:
            return done
        share = -(-batch // len(slices))
        due = rows(connection, "lock_due_clocks", {"slices": sorted(slices), "now": now, "share": share})
        per_slice: dict[int, int] = {}
        for _, _, number in due:
            per_slice[number] = per_slice.get(number, 0) + 1
        done.more = any(count >= share for count in per_slice.values())
        if due:
            _settle(connection, {job: at for job, at, _ in due}, done)
    return done


def trigger_job(connection: Connection, job_id: UUID, now: datetime) -> Triggered:
    """What is due of one job by now, in the caller's transaction: an edit calls it under the old schedule.

    The caller holds the job's clock, and sets the next time under the new schedule afterwards.
    """
    done = Triggered(now, waits=True)
    with connection.transaction():
        due = rows(connection, "lock_due_clock", {"job": job_id, "now": now})
        if due:
            _settle(connection, {job: at for job, at, _ in due}, done)
    return done


def _settle(connection: Connection, due: dict[UUID, datetime], done: Triggered) -> None:
    visits = []
    grace = timedelta(seconds=settings.MISFIRE_GRACE_SECONDS)
    for row in rows(connection, "jobs_of_clocks", {"jobs": array(due, hexed)}):
        job = DueJob(due[row[0]].astimezone(timezone.utc), *row)
        try:
            visits.append(visit(job, done.now, grace))
        except Exception as error:  # a schedule that raises is parked, whatever it raises
            _park(connection, job, f"The next time cannot be reckoned: {error}", done)
    _write_or_halve(connection, visits, done)


def visit(job: DueJob, now: datetime, grace: timedelta) -> Visit:
    """Pure: which runs, which gap, which next time."""
    found = Visit(job)
    if not job.active:
        return found
    fresh_from = now - grace
    first: datetime | None = job.due_at
    if job.due_at < fresh_from:
        first = next_time(job, fresh_from - MILLISECOND)
    while first is not None and first <= now and len(found.times) < MOST_TIMES_IN_A_VISIT:
        found.times.append(first)
        first = next_time(job, first)
    found.next_at = first
    if job.due_at < fresh_from:
        _settle_gap(found, now)
    return found


def _settle_gap(found: Visit, now: datetime) -> None:
    """Times older than the grace were missed; at most the last of them still runs, and only if none is fresh."""
    job = found.job
    end = found.times[0] if found.times else whole_milliseconds(now)
    if not found.times and job.policy == "last":
        last = _last_missed(job, now)
        if last is not None:
            found.times, found.catch_up, end = [last], True, last
    if job.due_at < end:
        found.missed = (job.due_at, end)


def _last_missed(job: DueJob, now: datetime) -> datetime | None:
    last = (
        schedules.last_before(_schedule(job), now, anchor=job.anchor_at, not_before=job.due_at) or job.due_at
    )
    reach = min(job.window_seconds, (settings.HOT_PERIOD_DAYS - 2) * 86_400)
    return last if now - last <= timedelta(seconds=reach) else None


def next_time(job: DueJob, after: datetime) -> datetime | None:
    return schedules.next_after(_schedule(job), after, anchor=job.anchor_at)


def _schedule(job: DueJob) -> schedules.Schedule:
    text = job.schedule or "null"
    return _parsed(text, str(job.id) if HASHED.search(text) else "")


@lru_cache(maxsize=65_536)
def _parsed(text: str, hash_id: str) -> schedules.Schedule:
    return schedules.parse(json.loads(text), hash_id=hash_id)


def _write_or_halve(connection: Connection, visits: Sequence[Visit], done: Triggered) -> None:
    """A batch the database refuses is halved until the culprit is alone; time-outs and lost connections are not
    anybody's fault and end the pass."""
    if not visits:
        return
    try:
        with connection.transaction():
            _write(connection, visits, done)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError) as error:
        if error.sqlstate == "23514" and not error.diag.constraint_name:
            raise NoPartition(NoPartition.__doc__) from error
        if len(visits) == 1:
            _park(
                connection, visits[0].job, f"The database refuses its run: {error.diag.message_primary}", done
            )
            return
        middle = len(visits) // 2
        _write_or_halve(connection, visits[:middle], done)
        _write_or_halve(connection, visits[middle:], done)


def _write(connection: Connection, visits: Sequence[Visit], done: Triggered) -> None:
    finished = [found.job.id for found in visits if found.finishes]
    held = _held(connection, finished, done)
    if held:
        finished = [job for job in finished if job not in held]
        visits = [found for found in visits if found.job.id not in held]
    taken = _already_run(connection, visits)
    born = sorted(_born(visits, taken, done.now), key=lambda run: run.id.int)
    spans = [(found.job, *found.missed, "downtime", found.job.policy) for found in visits if found.missed]
    inserted = _insert_runs(connection, born)
    spans += _collisions(connection, [run for run in born if run.id not in inserted], visits)
    _insert_spans(connection, spans)
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
    skipped = sum(1 for run in born if run.state and run.id in inserted)
    done.runs += len(inserted) - skipped
    done.skipped += skipped
    done.spans += len(spans)
    done.finished += len(finished)


def _held(connection: Connection, jobs: Sequence[UUID], done: Triggered) -> set[UUID]:
    """Those of the jobs whose rows are in somebody's hands, a run-now's above all: a later pass finds them due."""
    if not jobs or done.waits:
        return set()
    return set(jobs) - {job for (job,) in rows(connection, "lock_jobs", {"jobs": jobs})}


class NewRun(NamedTuple):
    """The columns of `insert_runs`, in its order."""

    id: UUID
    tenant_id: int
    job_id: UUID
    version: int
    pool_id: int
    trigger: str
    planned_at: datetime
    priority: int
    state: str | None
    available_at: datetime
    rank: int
    target_key: str
    gated: bool


WRITTEN: dict[str, Callable[[Any], str]] = {
    "id": hexed,
    "job_id": hexed,
    "planned_at": instant,
    "available_at": instant,
    "target_key": quoted,
}


def _born(visits: Iterable[Visit], taken: Collection[UUID], now: datetime) -> Iterable[NewRun]:
    for found in visits:
        job = found.job
        trigger = Trigger.CATCH_UP.value if found.catch_up else Trigger.SCHEDULE.value
        unfinished = job.busy
        for planned_at in found.times:
            identity = run_id(job.id, planned_at)
            if identity in taken:
                continue
            state = FinalState.SKIPPED.value if unfinished else None
            unfinished = job.skips_overlap
            # What is made up for takes its place behind the work that is due now.
            available_at = now if found.catch_up else planned_at
            yield NewRun(
                identity, job.tenant_id, job.id, job.version, job.pool_id, trigger, planned_at, job.priority,
                state, available_at, rank(available_at, job.priority), job.target_key, job.gated,
            )  # fmt: skip


def rank(available_at: datetime, priority: int) -> int:
    """Of a run that may go from then on: it does not change with time, and lower goes first."""
    return milliseconds(available_at) - priority * int(settings.STARVATION_BOUND_SECONDS)


def _already_run(connection: Connection, visits: Iterable[Visit]) -> set[UUID]:
    """Of jobs with several times in this visit: one that has its run already must not count as unfinished."""
    ids = [
        run_id(found.job.id, planned_at)
        for found in visits
        if len(found.times) > 1 and found.job.skips_overlap
        for planned_at in found.times
    ]
    return set(_owners(connection, ids))


def _owners(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, UUID]:
    if not ids:
        return {}
    return dict(rows(connection, "runs_that_exist", {"ids": ids, "first": min(ids), "last": max(ids)}))


def _insert_runs(connection: Connection, born: Sequence[NewRun]) -> set[UUID]:
    if not born:
        return set()
    columns = zip(NewRun._fields, zip(*born, strict=True), strict=True)
    values = {name: array(column, WRITTEN.get(name, str)) for name, column in columns}
    return {row[0] for row in rows(connection, "insert_runs", values)}


Span = tuple[DueJob, datetime, datetime, str, str]


def _collisions(connection: Connection, refused: Sequence[NewRun], visits: Iterable[Visit]) -> list[Span]:
    """A time that has its run already needs nothing; one whose id is another job's is missed, and said so."""
    owners = _owners(connection, [run.id for run in refused])
    strangers = [run for run in refused if owners.get(run.id, run.job_id) != run.job_id]
    if not strangers:
        return []
    jobs = {found.job.id: found.job for found in visits}
    for run in strangers:
        logger.error("run id %s of job %s belongs to job %s", run.id, run.job_id, owners[run.id])
    return [
        (jobs[run.job_id], run.planned_at, run.planned_at + MILLISECOND, "id taken", "skip")
        for run in strangers
    ]


def _insert_spans(connection: Connection, spans: Sequence[Span]) -> None:
    if not spans:
        return
    jobs, from_at, to_at, reason, policy = (list(column) for column in zip(*spans, strict=True))
    values: dict[str, Any] = {
        "tenant_id": [job.tenant_id for job in jobs],
        "job_id": [job.id for job in jobs],
        "version": [job.version for job in jobs],
    }
    change(
        connection,
        "insert_missed_spans",
        {**values, "from_at": from_at, "to_at": to_at, "reason": reason, "policy": policy},
    )


def _park(connection: Connection, job: DueJob, note: str, done: Triggered) -> None:
    if _held(connection, [job.id], done):
        return
    logger.error("job %s is unrunnable: %s", job.id, note)
    end = max(whole_milliseconds(done.now), job.due_at + MILLISECOND)
    change(
        connection,
        "park_job",
        {"job": job.id, "note": _storable(note), "from_at": job.due_at, "to_at": end},
    )
    done.parked += 1


def _storable(note: str) -> str:
    return note.replace("\x00", "")[:2000]
