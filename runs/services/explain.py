"""Explain why a job or a run does not run. The API and the admin render the same obstacles."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import Count, Model, TextChoices

from jobs.models import Job, JobStatus, JobVersion, Suspension
from jobs.spec.targets import availability
from jobs.suspensions.lookup import read_suspensions, suspensions_of
from jobs.suspensions.rules import SuspensionSet
from jobs.validation.instants import as_text
from runs.models import LiveRun, MissedSpan, Queue, Run, SpanState
from runs.reasons import NOT_HELD, Reason, code_of, describe
from runs.services import breakers
from runs.sql import fetch
from runs.states import LiveState, Trigger


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
    JobStatus.UNRUNNABLE: "correcting what the reason names, then resuming the job",
}
MAX_COUNTED = 1000
IN_QUEUE = (LiveState.READY, LiveState.QUEUED)
# The reasons of blocked runs that say no more than that: the words are those of the suspension or the job.
SUSPENDED = (Reason.PAUSED, Reason.BLACKOUT)
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
        yield _status(job)
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
    shared = list(_common(run.job, run.job.versions.get(version=live.version), live.pool_id, now))
    if _paused(run.job, live):
        shared.append(_status(run.job))
    reason, words = live.reason, describe(live.reason)
    if not words and not shared:
        reason, words = Reason.NO_FREE_SLOT, _turn(live)
    if words:
        yield Obstacle(ObstacleCode(live.state), words, unblocked_by=unblocked_by(reason))
    yield from shared


def live_rows(runs: Iterable[Run]) -> Iterator[LiveRun]:
    """Yield the live rows of runs that were read with their jobs."""
    for run in runs:
        if live := run.live_or_none:
            live.job = run.job
            yield live


def note_waiting(rows: Iterable[LiveRun]) -> None:
    """Note on each ready, queued or suspended run why it waits, by one statement for the queues of all."""
    waiting = [live for live in rows if live.state in IN_QUEUE or live.reason in SUSPENDED]
    wanted = {(live.pool_id, live.tenant_id) for live in waiting}
    if not wanted:
        return
    pools, tenants = zip(*wanted, strict=True)
    found = fetch("why_queues_wait", pools=list(pools), tenants=list(tenants))
    queues = {(queue["pool_id"], queue["tenant_id"]): queue for queue in found}
    rules = read_suspensions(found[0]["now"]) if found[0]["suspensions"] else SuspensionSet()
    for live in waiting:
        live.waits_for = _why(live, queues[live.pool_id, live.tenant_id], rules)


def _why(live: LiveRun, queue: dict[str, Any], rules: SuspensionSet) -> str:
    held = rules.holds(live.tenant_id, live.pool_id, live.job_id, live.job.tags, queue["now"])
    if held is not None:
        return held.stored_reason
    if _paused(live.job, live):
        return Reason.PAUSED.with_words(live.job.status_reason)
    if live.state == LiveState.BLOCKED:
        return live.reason
    if queue["reason"] not in NOT_HELD:
        return str(queue["reason"])
    return (live.reason or Reason.NO_FREE_SLOT) if queue["served"] else Reason.NO_LIVE_WORKER


def _paused(job: Job, live: LiveRun) -> bool:
    """Test whether the pause of its job holds a run: only those that its schedule planned."""
    return job.status == JobStatus.PAUSED and live.trigger in (Trigger.SCHEDULE, Trigger.CATCH_UP)


def _status(job: Job) -> Obstacle:
    reason = f": {job.status_reason}" if job.status_reason else ""
    until = f" until {as_text(job.paused_until)}" if job.paused_until else ""
    remedy = STATUS_UNBLOCKED_BY.get(JobStatus(job.status), "")
    return Obstacle(ObstacleCode.STATUS, f"the job is {job.status}{until}{reason}", unblocked_by=remedy)


def _turn(live: LiveRun) -> str:
    words = describe(Reason.NO_FREE_SLOT)
    if live.state != LiveState.READY:
        return words
    ready = LiveRun.objects.filter(state=LiveState.READY, pool=live.pool_id, tenant=live.tenant_id)
    before = ready.filter(rank__lt=live.rank)[:MAX_COUNTED].count()
    more = " or more" if before == MAX_COUNTED else ""
    return f"{words}; ready runs of its queue that go before it: {before}{more}"


def waiting_spans(job: Job) -> list[MissedSpan]:
    """Return the planned times under a suspension, whose treatment is decided when it ends."""
    return list(MissedSpan.objects.filter(job=job, state=SpanState.OPEN).order_by("begins_at"))


def unblocked_by(reason: str) -> str:
    code = code_of(reason)
    return Reason(code).unblocked_by if code in Reason.values else ""


def _common(job: Job, version: JobVersion, pool_id: int, now: datetime) -> Iterator[Obstacle]:
    """Name what keeps all runs of a version in a pool: suspensions, the queue, the target, the breaker."""
    for suspension in suspensions_of(job, now):
        end = f" until {as_text(suspension.over_at)}" if suspension.over_at else ""
        reason = f": {suspension.reason}" if suspension.reason else ""
        link = f"/api/v1/{suspension.kind}s/{suspension.public_id}"
        remedy = "its end, or lifting it" if suspension.over_at else "lifting it"
        detail, subject = f"{suspension.word}{end}{reason}", Suspension(pk=suspension.id)
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
