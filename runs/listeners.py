"""What runs do inside a change of a job (jobs/signals.py); jobs knows nothing of them."""

from datetime import datetime
from typing import Any

from django.db import connection
from django.dispatch import receiver

from jobs import signals
from jobs.models import Job, JobVersion
from jobs.services import TakenInstant
from runs.models import JobGate, LiveRun, MissedSpan, Run
from runs.requests import lock_runs_of
from runs.services import cancel_unfinished
from runs.trigger import trigger_job
from scheduler_project.sdk.ids import run_id


@receiver(signals.clock_locked)
def trigger_what_is_due(job: Job, now: datetime, **_: Any) -> None:
    connection.ensure_connection()
    trigger_job(connection.connection, job.pk, now)


@receiver(signals.instant_asked)
def answer_taken_instant(job: Job, at: datetime, **_: Any) -> TakenInstant | None:
    run = Run.objects.select_related("live").filter(pk=run_id(job.pk, at)).first()
    return TakenInstant(str(run.pk), run.state or run.live.state) if run else None


@receiver(signals.times_missed)
def write_span(job: Job, spec: JobVersion, from_at: datetime, to_at: datetime, reason: str, **_: Any) -> None:
    MissedSpan.objects.create(
        tenant_id=job.tenant_id,
        job=job,
        version=spec.version,
        from_at=from_at,
        to_at=to_at,
        reason=reason,
        policy="skip",
    )


@receiver(signals.spec_written)
def keep_gate(job: Job, spec: JobVersion, **_: Any) -> None:
    """A job with a limit has its gate; one without has none. What is under way follows."""
    had_gate = JobGate.objects.select_for_update().filter(job=job).exists()
    if spec.max_concurrency is None:
        JobGate.objects.filter(job=job).delete()
    else:
        JobGate.objects.update_or_create(job=job, defaults={"max_running": spec.max_concurrency})
    has_gate = spec.max_concurrency is not None
    if had_gate != has_gate and job.version > 1:
        ids = [live["id"] for live in lock_runs_of(job.pk)]
        LiveRun.objects.filter(pk__in=ids).update(gated=has_gate)


@receiver(signals.job_stopped)
def end_unfinished(job: Job, reason: str, **_: Any) -> None:
    cancel_unfinished(job, reason)
