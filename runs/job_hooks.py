"""Take part in changes of jobs, which know nothing of runs (jobs/hooks.py)."""

from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet

from jobs.hooks import KnownTargets, Missed, TakenInstant
from jobs.models import OVERLAP_POLICIES, Job, JobVersion, Pool, Tenant
from jobs.schedules import last_before
from jobs.services.occurrences import schedule_of
from runs import history
from runs.events import emit_on_commit
from runs.models import Breaker, JobGate, LiveRun, MissedSpan
from runs.reasons import Reason
from runs.scheduler.catch_up import catch_up
from runs.scheduler.catch_up.catch_up import Settled, foresee_gap, settle_gap
from runs.scheduler.trigger.missed import MAX_COUNTED
from runs.scheduler.trigger.trigger import trigger_job
from runs.services import breakers
from runs.services.runs import cancel_unfinished, lock_runs_of
from runs.sql import change, django_session, fetch
from runs.transitions import release_all_waiting, release_broken, release_gated
from scheduler_project.sdk.ids import MILLISECOND, run_id
from scheduler_project.sdk.ledger.postgres import MAX_RELEASED

# A pool may have had many workers; the latest ones know what its code is.
LATEST_WORKERS = 20


class RunHooks:
    """Implement the protocol of jobs/hooks.py."""

    def settle_due(self, job: Job, now: datetime) -> None:
        done = trigger_job(django_session(), job.pk, now)
        emit_on_commit(*done.all_events())

    def taken_instant(self, job: Job, at: datetime) -> TakenInstant | None:
        run = history.find(run_id(job.pk, at))
        return TakenInstant(str(run.pk), run.state or run.live.state) if run else None

    def missed_until(self, job: Job, at: datetime) -> datetime | None:
        spans = MissedSpan.objects.filter(job=job, begins_at__lte=at, ends_at__gt=at)
        return spans.order_by("-ends_at").values_list("ends_at", flat=True).first()

    def settle_missed(
        self, spec: JobVersion, begins_at: datetime, ends_at: datetime, reason: str, policy: str | None
    ) -> Missed:
        done = settle_gap(django_session(), spec.job_id, begins_at, ends_at, reason, policy)
        emit_on_commit(*done.events)
        return _missed(spec, begins_at, ends_at, done)

    def foresee_missed(
        self, spec: JobVersion, begins_at: datetime, ends_at: datetime, policy: str | None
    ) -> Missed:
        foreseen = foresee_gap(django_session(), spec.job_id, begins_at, ends_at, policy)
        return _missed(spec, begins_at, ends_at, foreseen)

    def is_known(self, target_key: str, pool: Pool, tenant: Tenant) -> bool:
        [row] = fetch("target_is_known", target=target_key, pool=pool.pk, tenant=tenant.pk)
        return bool(row["known"])

    def known_targets(self, pool: Pool, tenant: Tenant | None) -> KnownTargets:
        values = {"pool": pool.pk, "tenant": tenant and tenant.pk, "latest": LATEST_WORKERS}
        [row] = fetch("known_targets", **values)
        return KnownTargets(row["live"], frozenset(row["names"]))

    def held_jobs(self) -> QuerySet[Breaker, UUID]:
        return breakers.not_closed().values_list("job_id", flat=True)

    def version_written(self, job: Job, spec: JobVersion) -> None:
        keep_gate(job, spec)
        keep_catching_up(job, spec)

    def job_ended(self, job: Job, now: datetime, reason: str) -> None:
        catch_up.give_up(django_session(), job.pk, Reason.JOB_ENDED)
        # The caller holds the clock, as every writer of missed times does.
        change(django_session(), "drop_moved", {"job": job.pk, "now": now, "reason": Reason.JOB_ENDED})
        cancel_unfinished(job, reason)


def _missed(spec: JobVersion, begins_at: datetime, ends_at: datetime, settled: Settled) -> Missed:
    # The last time of a schedule that cannot be read any more is unknown.
    try:
        last = last_before(
            schedule_of(spec), ends_at - MILLISECOND, anchor=spec.anchor_at, not_before=begins_at
        )
    except Exception:  # noqa: BLE001 - an unrunnable job is so because this raises
        last = None
    return Missed(
        count=MAX_COUNTED if settled.missed is None else settled.missed,
        exact=settled.missed is not None,
        first_at=begins_at,
        last_at=last or ends_at - MILLISECOND,
        policy=settled.policy,
        runs=settled.runs_now + settled.will_run,
    )


def keep_gate(job: Job, spec: JobVersion) -> None:
    """Keep the gate of a job that has a limit or a breaker, or whose runs may wait for each other.

    The gate stays while runs wait for each other, whatever the policy is now: the end of one releases the next.
    """
    limit = spec.max_concurrency
    needs_gate = limit is not None or spec.breaker is not None or OVERLAP_POLICIES[spec.overlap].needs_gate
    if job.version == 1:
        if needs_gate:
            JobGate.objects.create(job=job, max_running=limit)
        keep_breaker(spec)
        return
    had_gate = JobGate.objects.select_for_update().filter(job=job).exists()
    if had_gate:
        JobGate.objects.filter(job=job).update(max_running=limit)
        # Release runs that a new version has room for, or lets wait no longer.
        if not OVERLAP_POLICIES[spec.overlap].counts_unfinished:
            release_all_waiting(django_session(), spec.job_id)
        release_gated(django_session(), [spec.job_id])
    waiting = LiveRun.objects.filter(job=job, state="blocked", reason=Reason.OVERLAP)
    needs_gate = needs_gate or waiting.exists()
    if needs_gate and not had_gate:
        JobGate.objects.create(job=job, max_running=limit)
    elif had_gate and not needs_gate:
        JobGate.objects.filter(job=job).delete()
    keep_breaker(spec)
    if had_gate != needs_gate:
        ids = [live["id"] for live in lock_runs_of(job.pk)]
        LiveRun.objects.filter(pk__in=ids).update(gated=needs_gate)


def keep_breaker(spec: JobVersion) -> None:
    """Keep the breaker as the version has it, under the lock of the gate; without one, release what it held.

    A breaker that is open stays open for as long as it was to.
    """
    if spec.breaker is not None:
        cooldown_ms = round(spec.breaker["cooldown"] * 1000)
        values = {"limit": spec.breaker["failures"], "cooldown_ms": cooldown_ms}
        Breaker.objects.update_or_create(job_id=spec.job_id, defaults=values)
    elif spec.version > 1 and Breaker.objects.filter(job=spec.job_id).delete()[0]:
        release_broken(django_session(), [spec.job_id], MAX_RELEASED)


def keep_catching_up(job: Job, spec: JobVersion) -> None:
    """Continue a catch-up of the same schedule as the new version says."""
    if job.version == 1:
        return
    before = job.versions.get(version=job.version - 1)
    if before.catch_up["policy"] != spec.catch_up["policy"]:
        catch_up.give_up(django_session(), job.pk, Reason.POLICY_CHANGED)
    if (before.schedule, before.anchor_at) == (spec.schedule, spec.anchor_at):
        values = {"job": job.pk, "before": before.version, "version": spec.version}
        change(django_session(), "move_spans_to_version", values)
