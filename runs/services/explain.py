"""Explain why a job or a run does not run. The API and the admin render the same obstacles."""

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

from django.db.models import Count, Model, TextChoices

from jobs.models import Job, JobStatus, JobVersion, Suspension
from jobs.spec.targets import availability
from jobs.suspensions.lookup import suspensions_of
from jobs.validation.instants import as_text
from runs.models import LiveRun, MissedSpan, Queue, Run, SpanState
from runs.reasons import NOT_HELD, Reason, code_of, describe
from runs.services import breakers
from runs.states import LiveState


class ObstacleCode(TextChoices):
    SUSPENSION = "suspension"
    QUEUE = "queue"
    TARGET = "target"
    BREAKER = "breaker"
    STATUS = "status"
    SCHEDULE = "schedule"
    BLOCKED = LiveState.BLOCKED.value
    DELAYED = LiveState.DELAYED.value
    # Of a run that its worker gave back; it is no obstacle of its job.
    READY = LiveState.READY.value


JOB_CODES = [code for code in ObstacleCode if code != ObstacleCode.READY]
STATUS_UNBLOCKED_BY = {
    JobStatus.PAUSED: "resuming the job",
    JobStatus.FINISHED: "a new schedule",
    JobStatus.UNRUNNABLE: "correcting what the note names, then resuming the job",
}
WAITING = (LiveState.DELAYED, LiveState.READY, LiveState.QUEUED, LiveState.BLOCKED)


class Obstacle(NamedTuple):
    """What keeps a job or a run from running, what ends that, and the row it stands on."""

    code: ObstacleCode
    detail: str
    link: str = ""
    unblocked_by: str = ""
    subject: Model | None = None


def obstacles_of_job(job: Job, now: datetime) -> Iterator[Obstacle]:
    """Name all obstacles of a job, the widest first."""
    yield from _common(job, job.spec, job.pool_id, now)
    if job.status != JobStatus.ACTIVE:
        note = f": {job.status_note}" if job.status_note else ""
        until = f" until {as_text(job.paused_until)}" if job.paused_until else ""
        detail = f"the job is {job.status}{until}{note}"
        remedy = STATUS_UNBLOCKED_BY.get(JobStatus(job.status), "")
        yield Obstacle(ObstacleCode.STATUS, detail, unblocked_by=remedy)
    elif job.clock.next_run_at is None:
        detail = "it has no planned times: it runs on demand only"
        yield Obstacle(ObstacleCode.SCHEDULE, detail, unblocked_by="running it now, or a schedule")
    held = LiveRun.objects.filter(job=job, state__in=(LiveState.BLOCKED, LiveState.DELAYED))
    counts = held.values_list("state", "reason").annotate(Count("pk")).order_by("state", "reason")
    for state, reason, count in counts:
        runs = "1 run waits" if count == 1 else f"{count} runs wait"
        detail = f"{runs}: {describe(reason) or 'for its next try'}"
        link = f"/api/v1/runs?job={job.pk}&state={state}"
        yield Obstacle(ObstacleCode(state), detail, link, unblocked_by(reason))


def obstacles_of_run(run: Run, now: datetime) -> Iterator[Obstacle]:
    """Name the obstacles of a waiting run: its own reason, then those of its job; none once a worker has it."""
    live = run.live_or_none
    if live is None or live.state not in WAITING:
        return
    if words := live.describe_reason():
        yield Obstacle(ObstacleCode(live.state), words, unblocked_by=unblocked_by(live.reason))
    yield from _common(run.job, run.job.versions.get(version=live.version), live.pool_id, now)


def waiting_spans(job: Job) -> list[MissedSpan]:
    """Return the planned times under a suspension, whose treatment is decided when it ends."""
    return list(MissedSpan.objects.filter(job=job, state=SpanState.OPEN).order_by("from_at"))


def unblocked_by(reason: str) -> str:
    code = code_of(reason)
    return Reason(code).unblocked_by if code in Reason.values else ""


def _common(job: Job, version: JobVersion, pool_id: int, now: datetime) -> Iterator[Obstacle]:
    """Name what keeps all runs of a version in a pool: suspensions, the queue, the target, the breaker."""
    for suspension in suspensions_of(job, now):
        end = f" until {as_text(suspension.over_at)}" if suspension.over_at else ""
        note = f": {suspension.note}" if suspension.note else ""
        link = f"/api/v1/{suspension.kind}s/{suspension.id}"
        remedy = "its end, or lifting it" if suspension.over_at else "lifting it"
        detail, subject = f"{suspension.word}{end}{note}", Suspension(pk=suspension.id)
        yield Obstacle(ObstacleCode.SUSPENSION, detail, link, remedy, subject)
    queues = Queue.objects.filter(pool=pool_id, tenant=job.tenant_id).select_related("pool")
    if queue := queues.exclude(reason__in=NOT_HELD).first():
        detail = f"your queue in the pool {queue.pool.slug} cannot go: {describe(queue.reason)}"
        yield Obstacle(ObstacleCode.QUEUE, detail, unblocked_by=unblocked_by(queue.reason), subject=queue)
    if unknown := availability.warning(version.target, job.pool, job.tenant):
        yield Obstacle(ObstacleCode.TARGET, unknown, unblocked_by=Reason.UNKNOWN_TARGET.unblocked_by)
    for breaker in breakers.not_closed().filter(job=job):
        words, link = breakers.describe(breaker), f"/api/v1/jobs/{job.pk}/breaker"
        yield Obstacle(ObstacleCode.BREAKER, words, link, Reason.BREAKER.unblocked_by)
