"""The rows of missed times. Whoever writes one holds the clock of its job, and then the stop that it waits for."""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from jobs.stop_rules import STOP_QUEUE, Stops
from runs.due_jobs import DueJob
from runs.gaps import OPEN, Span
from runs.queries import Connection, array, change, hexed, instant, quoted, rows
from runs.visits import Visit
from scheduler_project.sdk.ids import EPOCH

logger = logging.getLogger(__name__)

UNRUNNABLE = "unrunnable"

WRITTEN: dict[str, Callable[[Any], str]] = {
    "from_at": instant,
    "to_at": instant,
    "reason": quoted,
    "policy": str,
    "state": str,
    "stop_id": str,
    "cursor": instant,
    "next_at": instant,
    "number": str,
}


def hold_stops(
    connection: Connection, visits: Iterable[Visit], stops: Stops, *, waits: bool = False
) -> set[UUID]:
    """Nobody can lift or settle these stops until we commit, so no span is left behind by the end of its stop.

    Returns the jobs of visits that relied on a stop which is another by now; the next pass decides again.
    """
    relying = {found.job.id: found.stops for found in visits if found.stops}
    if not relying:
        return set()
    wanted = sorted(set().union(*relying.values()))
    statement = "wait_for_stops" if waits else "hold_stops"
    held: dict[int, datetime | None] = dict(
        rows(connection, statement, {"stops": wanted, "queue": STOP_QUEUE})
    )
    same = {stop.id for stop in stops.rows if stop.id in held and held[stop.id] == stop.over_at}
    return {job for job, wanted_by in relying.items() if not wanted_by <= same}


def write(connection: Connection, spans: Sequence[Span]) -> None:
    """New spans; an open one that goes on where the job's last one ended makes that one longer."""
    opened = [span for span in spans if span.state == OPEN]
    if opened:
        longer = set(rows(connection, "extend_open_spans", _columns(opened)))
        spans = [span for span in spans if (span.job.id, span.from_at) not in longer or span.state != OPEN]
    if spans:
        change(connection, "insert_missed_spans", _columns(spans))


def _columns(spans: Sequence[Span]) -> dict[str, str]:
    jobs = [span.job for span in spans]
    return {
        "tenant_id": array(job.tenant_id for job in jobs),
        "job_id": array((job.id for job in jobs), hexed),
        "version": array(job.version for job in jobs),
        "slice": array(job.slice for job in jobs),
        **{name: array((getattr(span, name) for span in spans), write) for name, write in WRITTEN.items()},
    }


class SpanRow(NamedTuple):
    id: int
    job_id: UUID
    version: int
    from_at: datetime
    to_at: datetime
    reason: str
    stop_id: int | None
    cursor: datetime | None
    made: int


class Taken(NamedTuple):
    """A span whose clock is ours, and its job as it is now, with the version under which its times were planned."""

    span: SpanRow
    job: DueJob


def take(
    connection: Connection,
    statement: str,
    jobs: Sequence[UUID],
    values: dict[str, Any],
    *,
    need_tags: bool = False,
) -> list[Taken]:
    """The spans of these jobs, oldest first, with the clocks locked; a job that somebody has in hand is left out."""
    if not jobs:
        return []
    locked = [job for (job,) in rows(connection, "lock_clocks", {"jobs": jobs})]
    found = rows(connection, statement, {**values, "jobs": locked})
    return with_jobs(connection, [SpanRow(*row) for row in found], need_tags)


def with_jobs(connection: Connection, spans: Sequence[SpanRow], need_tags: bool = False) -> list[Taken]:
    if not spans:
        return []
    pairs = sorted({(span.job_id, span.version) for span in spans})
    values = {"jobs": [job for job, _ in pairs], "versions": [version for _, version in pairs]}
    found = [
        DueJob(EPOCH, *row) for row in rows(connection, "jobs_of_spans", {**values, "need_tags": need_tags})
    ]
    jobs = {(job.id, job.version): job for job in found}
    taken = [Taken(span, jobs[span.job_id, span.version]) for span in spans]
    return sorted(taken, key=lambda one: one.span.from_at)


def given_up(of_job: Sequence[Taken], note: str) -> Visit:
    """Spans of a job whose times cannot be reckoned, or whose run the database refuses."""
    job = of_job[-1].job
    logger.error("missed times of job %s get no run: %s", job.id, note)
    told = [Span(one.job, one.span.from_at, one.span.to_at, UNRUNNABLE, number=1) for one in of_job]
    return Visit(job, spans=told)
