"""Read and write the rows of missed times; a writer locks the job's clock, and then the suspension they wait for."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from jobs.models import COUNTING_POLICIES
from jobs.suspensions.rules import SUSPENSION_LOCK, SuspensionSet
from runs.events import MissedTimesDropped
from runs.reasons import Reason
from runs.scheduler.trigger.decision import TriggerDecision
from runs.scheduler.trigger.due_job import DueJob
from runs.scheduler.trigger.missed import OPEN, Span
from runs.sql import Connection, array, change, hexed, instant, quoted, rows
from scheduler_project.sdk.ids import EPOCH

WRITTEN: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(("begins_at", "ends_at", "cursor", "next_at"), instant),
    "reason": quoted,
}


def hold_suspensions(
    connection: Connection,
    decisions: Iterable[TriggerDecision],
    suspensions: SuspensionSet,
    *,
    waits: bool = False,
) -> set[UUID]:
    """Lock suspensions until the commit, so that none is lifted or settled while a span is being left to it.

    Returns the jobs whose decision relied on a suspension which has changed by now; the next pass decides again.
    """
    relying = {found.job.id: found.suspensions for found in decisions if found.suspensions}
    if not relying:
        return set()
    wanted = sorted(set().union(*relying.values()))
    statement = "wait_for_suspensions" if waits else "hold_suspensions"
    # Each with the instant at which it is over, as it is now.
    held = set(rows(connection, statement, {"suspensions": wanted, "queue": SUSPENSION_LOCK}))
    same = {row.id for row in suspensions.rows if (row.id, row.over_at) in held}
    return {job for job, wanted_by in relying.items() if not wanted_by <= same}


def write(connection: Connection, spans: Sequence[Span]) -> None:
    """Insert spans; an open one that continues the job's last one makes that one longer."""
    opened = [span for span in spans if span.state == OPEN]
    if opened:
        longer = set(rows(connection, "extend_open_spans", _columns(opened)))
        spans = [span for span in spans if (span.job.id, span.begins_at) not in longer or span.state != OPEN]
    if spans:
        change(connection, "insert_missed_spans", _columns(spans))


def _columns(spans: Sequence[Span]) -> dict[str, str]:
    jobs = [span.job for span in spans]
    columns = {name: [getattr(span, name) for span in spans] for name in Span._fields[1:]}
    return {
        "tenant_id": array(job.tenant_id for job in jobs),
        "job_id": array((job.id for job in jobs), hexed),
        "version": array(job.version for job in jobs),
        "slice": array(job.slice for job in jobs),
        **{name: array(column, WRITTEN.get(name, str)) for name, column in columns.items()},
    }


class SpanRow(NamedTuple):
    id: int
    job_id: UUID
    version: int
    begins_at: datetime
    ends_at: datetime
    reason: str
    suspension_id: int | None
    cursor: datetime | None
    made: int


class LockedSpan(NamedTuple):
    """A span whose clock is locked, and its job as it is now, with the version that planned its times."""

    span: SpanRow
    job: DueJob


def take(
    connection: Connection,
    statement: str,
    jobs: Sequence[UUID],
    values: dict[str, Any],
    *,
    need_tags: bool = False,
) -> list[LockedSpan]:
    """Lock the jobs' clocks and return their spans, oldest first; a job locked by another session is left out."""
    if not jobs:
        return []
    locked = [job for (job,) in rows(connection, "lock_clocks", {"jobs": jobs})]
    found = rows(connection, statement, {**values, "jobs": locked})
    return with_jobs(connection, [SpanRow(*row) for row in found], need_tags)


def with_jobs(connection: Connection, spans: Sequence[SpanRow], need_tags: bool = False) -> list[LockedSpan]:
    if not spans:
        return []
    pairs = sorted({(span.job_id, span.version) for span in spans})
    values = {
        "jobs": [job for job, _ in pairs],
        "versions": [version for _, version in pairs],
        "need_tags": need_tags,
        "counting": COUNTING_POLICIES,
    }
    found = [DueJob(EPOCH, *row) for row in rows(connection, "jobs_of_spans", values)]
    jobs = {(job.id, job.version): job for job in found}
    taken = [LockedSpan(span, jobs[span.job_id, span.version]) for span in spans]
    return sorted(taken, key=lambda one: one.span.begins_at)


def given_up(of_job: Sequence[LockedSpan], reason: str) -> TriggerDecision:
    """Drop spans of a job whose times cannot be reckoned, or whose run the database refuses."""
    job = of_job[-1].job
    missed = [
        Span(one.job, one.span.begins_at, one.span.ends_at, Reason.UNRUNNABLE, number=1) for one in of_job
    ]
    return TriggerDecision(job, spans=missed, events=[MissedTimesDropped(job_id=job.id, reason=reason)])
