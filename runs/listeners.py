"""What runs do inside a change of a job (jobs/signals.py); jobs knows nothing of them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import QuerySet
from django.dispatch import receiver

from jobs import signals
from jobs.known_targets import KnownTargets
from jobs.models import Job, JobVersion, Overlap, Pool, Tenant
from jobs.planned_times import TakenInstant
from runs import breakers, catch_up, catch_up_pace
from runs.known_targets import known_targets
from runs.models import Breaker, JobGate, LiveRun, MissedSpan, Run
from runs.overlap import GATED
from runs.requests import lock_runs_of
from runs.services import cancel_unfinished
from runs.transitions import OVERLAP, release_all_waiting, release_broken, release_gated
from runs.trigger import trigger_job
from scheduler_project.sdk.ids import run_id
from scheduler_project.sdk.postgres import MOST_RELEASED


@receiver(signals.clock_locked)
def trigger_what_is_due(job: Job, now: datetime, **_: Any) -> None:
    connection.ensure_connection()
    trigger_job(connection.connection, job.pk, now)


@receiver(signals.instant_asked)
def answer_taken_instant(job: Job, at: datetime, **_: Any) -> TakenInstant | None:
    run = Run.objects.select_related("live").filter(pk=run_id(job.pk, at)).first()
    return TakenInstant(str(run.pk), run.state or run.live.state) if run else None


@receiver(signals.missed_instant_asked)
def answer_missed_instant(job: Job, at: datetime, **_: Any) -> datetime | None:
    spans = MissedSpan.objects.filter(job=job, from_at__lte=at, to_at__gt=at)
    return spans.order_by("-to_at").values_list("to_at", flat=True).first()


@receiver(signals.known_targets_asked)
def answer_known_targets(pool: Pool, tenant: Tenant | None, **_: Any) -> KnownTargets:
    return known_targets(pool, tenant)


@receiver(signals.held_jobs_asked)
def answer_held_jobs(**_: Any) -> QuerySet[Breaker, UUID]:
    return breakers.not_closed().values_list("job_id", flat=True)


@receiver(signals.spec_written)
def keep_gate(job: Job, spec: JobVersion, **_: Any) -> None:
    """A job with a limit or a breaker, or whose runs may wait for each other, has its gate. What is under way follows.

    As long as runs wait for each other the gate stays, whatever the policy is now: each that ends lets the next go.
    """
    limit = spec.max_concurrency
    needs_gate = limit is not None or spec.breaker is not None or spec.overlap in GATED
    if job.version == 1:
        if needs_gate:
            JobGate.objects.create(job=job, max_running=limit)
        keep_breaker(spec)
        return
    had_gate = JobGate.objects.select_for_update().filter(job=job).exists()
    if had_gate:
        JobGate.objects.filter(job=job).update(max_running=limit)
        release_under(spec)
    needs_gate = needs_gate or LiveRun.objects.filter(job=job, state="blocked", reason=OVERLAP).exists()
    if needs_gate and not had_gate:
        JobGate.objects.create(job=job, max_running=limit)
    elif had_gate and not needs_gate:
        JobGate.objects.filter(job=job).delete()
    keep_breaker(spec)
    if had_gate != needs_gate:
        ids = [live["id"] for live in lock_runs_of(job.pk)]
        LiveRun.objects.filter(pk__in=ids).update(gated=needs_gate)


def release_under(spec: JobVersion) -> None:
    """What a new version lets go at once: there may be more room, or nothing to wait for any more."""
    connection.ensure_connection()
    if spec.overlap == Overlap.ALLOW_ALL:
        release_all_waiting(connection.connection, spec.job_id)
    release_gated(connection.connection, [spec.job_id])


def keep_breaker(spec: JobVersion) -> None:
    """The gate is ours. One that is open stays so for as long as it was to; without it what it held goes."""
    if spec.breaker is not None:
        values = {
            "limit": spec.breaker["failures"],
            "cooldown_ms": round(spec.breaker["cooldown"] * 1000),
        }
        Breaker.objects.update_or_create(job_id=spec.job_id, defaults=values)
    elif spec.version > 1 and Breaker.objects.filter(job=spec.job_id).delete()[0]:
        connection.ensure_connection()
        release_broken(connection.connection, [spec.job_id], MOST_RELEASED)


@receiver(signals.spec_written)
def keep_catching_up(job: Job, spec: JobVersion, **_: Any) -> None:
    """What was missed under the same schedule is made up for as the new version says."""
    if job.version == 1:
        return
    before = job.versions.get(version=job.version - 1)
    connection.ensure_connection()
    if before.catch_up["policy"] != spec.catch_up["policy"]:
        catch_up.give_up(connection.connection, job.pk, "another catch-up policy")
    if (before.schedule, before.anchor_at) == (spec.schedule, spec.anchor_at):
        catch_up.go_on_with(connection.connection, job.pk, before.version, spec.version)


@receiver(signals.job_stopped)
def end_unfinished(job: Job, now: datetime, reason: str, **_: Any) -> None:
    connection.ensure_connection()
    catch_up.give_up(connection.connection, job.pk, catch_up_pace.CANCELLED)
    catch_up.tell_moved(connection.connection, job.pk, now, catch_up_pace.CANCELLED)
    cancel_unfinished(job, reason)
