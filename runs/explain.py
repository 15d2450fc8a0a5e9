"""Why a job does not run: all that stands in its way now, the widest first."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count

from jobs import known_targets, stops
from jobs.instants import as_text
from jobs.models import Job, JobStatus
from runs import breakers
from runs.models import Lane, LiveRun, MissedSpan, SpanState
from runs.states import LiveState


class Obstacle(NamedTuple):
    """`code` is for programs: status, stop, lane, target, breaker, blocked, delayed, schedule."""

    code: str
    detail: str
    link: str = ""


def obstacles(job: Job, now: datetime) -> Iterator[Obstacle]:
    yield from _stops(job, now)
    yield from _lane(job)
    yield from _target(job)
    yield from _breaker(job)
    yield from _status(job)
    yield from _runs(job)


def waiting_spans(job: Job) -> list[MissedSpan]:
    """Planned times that a stop suspended; what becomes of them is decided when it is over."""
    return list(MissedSpan.objects.filter(job=job, state=SpanState.OPEN).order_by("from_at"))


def _stops(job: Job, now: datetime) -> Iterator[Obstacle]:
    for stop in stops.of_job(job, now):
        end = f" until {as_text(stop.over_at)}" if stop.over_at else ""
        note = f": {stop.note}" if stop.note else ""
        yield Obstacle("stop", f"{stop.word}{end}{note}", f"/api/v1/{stop.kind}s/{stop.id}")


def _lane(job: Job) -> Iterator[Obstacle]:
    lane = Lane.objects.filter(pool=job.pool_id, tenant=job.tenant_id).exclude(reason="").first()
    if lane is not None:
        yield Obstacle("lane", f"your lane in the pool {job.pool.slug} cannot go: {lane.reason}")


def _breaker(job: Job) -> Iterator[Obstacle]:
    breaker = breakers.breaker_of(job)
    if breaker is not None and (words := breakers.in_words(breaker)):
        yield Obstacle("breaker", words, f"/api/v1/jobs/{job.pk}/breaker")


def _target(job: Job) -> Iterator[Obstacle]:
    if unknown := known_targets.warning(job.spec.target, job.pool, job.tenant):
        yield Obstacle("target", unknown)


def _status(job: Job) -> Iterator[Obstacle]:
    if job.status != JobStatus.ACTIVE:
        note = f": {job.status_note}" if job.status_note else ""
        until = f" until {as_text(job.paused_until)}" if job.paused_until else ""
        yield Obstacle("status", f"the job is {job.status}{until}{note}")
    elif job.clock.next_run_at is None:
        yield Obstacle("schedule", "it has no planned times: it runs on demand only")


def _runs(job: Job) -> Iterator[Obstacle]:
    held = LiveRun.objects.filter(job=job, state__in=(LiveState.BLOCKED, LiveState.DELAYED))
    for state, reason, count in (
        held.values_list("state", "reason").annotate(Count("pk")).order_by("state", "reason")
    ):
        runs = "1 run waits" if count == 1 else f"{count} runs wait"
        yield Obstacle(
            state, f"{runs}: {reason or 'for its next try'}", f"/api/v1/runs?job={job.pk}&state={state}"
        )
