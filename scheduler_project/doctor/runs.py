"""Check that due jobs are triggered, and their runs dispatched and executed."""

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Count, Q, QuerySet, Sum

from jobs.clock import database_now
from jobs.models import JOB_SLICES, Declaration, Job, JobStatus, Pool, Tenant
from runs.models import LiveRun, WorkerNode
from runs.reasons import Reason, describe
from runs.states import LiveState
from scheduler_project.doctor.database import rows
from scheduler_project.doctor.findings import Findings, age, counted, fine, fine_unless_found, note, problem
from scheduler_project.sdk.logs.store import open_log_store

LATE_SECONDS = 15
LATE_COUNTED = 1000
UNCLAIMED_SECONDS = 60
DECLARATION_SECONDS = 60
SHOWN = 3


def due_jobs() -> Findings:
    count, oldest = overdue()
    if not count:
        yield fine("no job is due and not triggered")
        return
    late = Job.objects.present().filter(clock__next_run_at=oldest).first()
    seconds = (database_now() - oldest).total_seconds() if oldest else 0
    yield problem(
        f"{counted(count, 'job is', 'jobs are')} due and not triggered, {late or 'the first'} since {age(seconds)}",
        "see whether a scheduler is alive and which slices are uncovered; its log names the cause",
    )


def overdue() -> tuple[int, datetime | None]:
    """Count the late jobs, and return the oldest planned time. Each slice is counted up to a limit, by its index."""
    ((count, oldest),) = rows(
        "SELECT count(*), min(due.next_run_at) FROM generate_series(0, %s - 1) AS slice (number)"
        " CROSS JOIN LATERAL (SELECT next_run_at FROM beatkeeper_job_clock"
        "  WHERE slice = slice.number AND next_run_at < now() - make_interval(secs => %s)"
        "  ORDER BY next_run_at LIMIT %s) due",
        [JOB_SLICES, LATE_SECONDS, LATE_COUNTED],
    )
    return count, oldest


@fine_unless_found("no queued run waits for a worker")
def queued_runs() -> Findings:
    for pool, tenant, count, oldest, _ in _waiting_by_queue(LiveState.QUEUED, "queued_at"):
        yield problem(
            f"{counted(count, 'run')} of {tenant} in the pool {pool} are queued and unclaimed, since {age(oldest)}",
            f"add workers to the pool {pool} or see what keeps their slots: all may be busy",
        )


@fine_unless_found("no run waits to be dispatched")
def waiting_runs() -> Findings:
    """Check for ready runs that are not dispatched; the reason of their queue explains why, if dispatch works."""
    for pool, tenant, count, oldest, reason in _waiting_by_queue(LiveState.READY, "available_at"):
        why = f"; the queue says: {describe(reason)}" if reason else ""
        yield problem(
            f"{counted(count, 'run')} of {tenant} in the pool {pool} wait to be dispatched, since {age(oldest)}{why}",
            "lift what the queue names" if reason else "see whether a scheduler is alive, and its log",
        )


def _waiting_by_queue(state: LiveState, since: str) -> list[tuple[Any, ...]]:
    """Return how many runs of a queue are in a state for too long, the longest time, and the queue's reason."""
    return rows(
        f"SELECT pool.slug, tenant.slug, count(*), extract(epoch FROM now() - min({since}))::float8,"  # noqa: S608 - a column
        " coalesce(max(queue.reason), '')"
        " FROM beatkeeper_live_run live JOIN beatkeeper_pool pool ON pool.id = live.pool_id"
        " JOIN beatkeeper_tenant tenant ON tenant.id = live.tenant_id"
        " LEFT JOIN beatkeeper_queue queue ON queue.pool_id = live.pool_id AND queue.tenant_id = live.tenant_id"
        f" WHERE live.state = %s AND {since} < now() - make_interval(secs => %s)"
        " GROUP BY 1, 2 ORDER BY 4 DESC LIMIT 10",
        [state, UNCLAIMED_SECONDS],
    )


def workers() -> Findings:
    """Check that all runs with work have a living worker in their pool, and one that knows their target."""
    alone, unknown = _unserved_runs()
    for pool, count in alone.most_common(SHOWN):
        yield problem(
            f"{counted(count, 'run waits', 'runs wait')} in the pool {pool}, which has no living worker for them",
            f"start one: BEATKEEPER_POOL={pool} celery -A scheduler_project worker",
        )
    for (pool, target), count in unknown.most_common(SHOWN):
        yield problem(
            f"{counted(count, 'run waits', 'runs wait')} for {target}, which no living worker for them in {pool} knows",
            f"deploy the code that defines {target} to a worker of {pool}, or cancel the runs",
        )
    if not alone and not unknown:
        total = WorkerNode.objects.living().aggregate(count=Count("pk"), slots=Sum("slots", default=0))
        alive, slots = counted(total["count"], "worker"), counted(total["slots"], "slot")
        yield fine(f"{alive} with {slots} alive, and no pool waits for one")


def _runs_with_work() -> QuerySet[LiveRun]:
    """Return unfinished runs that need a worker, including those blocked because no worker knew their target."""
    dispatchable = Q(state__in=(LiveState.READY, LiveState.QUEUED, LiveState.RUNNING))
    return LiveRun.objects.filter(dispatchable | Q(state=LiveState.BLOCKED, reason=Reason.UNKNOWN_TARGET))


def _unserved_runs() -> tuple[Counter[str], Counter[tuple[str, str]]]:
    """Count runs without a living worker by pool, and those whose target no such worker knows by pool and target."""
    known: dict[tuple[str, int | None], set[str]] = {}
    living = WorkerNode.objects.living().values_list("pool__slug", "tenant", "known_targets")
    for pool, tenant, targets in living:
        known.setdefault((pool, tenant), set()).update(targets)
    alone, unknown = Counter[str](), Counter[tuple[str, str]]()
    wanted = _runs_with_work().values_list("pool__slug", "tenant", "target_key").annotate(runs=Count("pk"))
    for pool, tenant, target, count in wanted:
        # A worker with a tenant's key takes runs of that tenant alone.
        served = [known[key] for key in ((pool, None), (pool, tenant)) if key in known]
        if not served:
            alone[pool] += count
        elif not any(target in targets for targets in served):
            unknown[pool, target] += count
    return alone, unknown


def commands() -> Findings:
    """Check how commands are isolated, by this process's environment: that of the workers is not known here."""
    if not settings.COMMANDS_AS_WORKER:
        yield fine("each command runs in a namespace of its own, or is refused")
        return
    mixed = _pools_of_several_with_commands()
    if not mixed:
        yield note(
            "BEATKEEPER_COMMANDS_AS_WORKER=1: commands may run as their worker; no pool runs those of several tenants"
        )
        return
    yield problem(
        f"BEATKEEPER_COMMANDS_AS_WORKER=1 lets commands run as their worker, and several tenants may have commands in"
        f" {', '.join(mixed)}: each can then read the worker's environment, with the passwords and secrets of all",
        "unset it where those workers run, so that commands have a namespace of their own "
        "(docs/reference/targets.md); or give"
        " each tenant a pool of its own, or take `command` from what the pool exports",
    )


def _pools_of_several_with_commands() -> list[str]:
    several = Pool.objects.annotate(count=Count("tenants")).filter(count__gt=1)
    open_to_several = Q(pk__in=several.values("pk"))
    if Tenant.objects.count() > 1:
        open_to_several |= Q(shared=True)
    found = Pool.objects.filter(open_to_several, exported_kinds__contains=["command"]).order_by("slug")
    slugs = list(found.values_list("slug", flat=True))
    return [*slugs[:SHOWN], *([f"{len(slugs) - SHOWN} more"] if len(slugs) > SHOWN else [])]


@fine_unless_found("no job is unrunnable")
def unrunnable_jobs() -> Findings:
    unrunnable = Job.objects.present().filter(status=JobStatus.UNRUNNABLE)
    if not (count := unrunnable.count()):
        return
    shown = unrunnable.select_related("tenant")[:SHOWN]
    named = "; ".join(f"{job.tenant}/{job.name}: {job.status_reason}" for job in shown)
    yield problem(
        f"{counted(count, 'job is', 'jobs are')} unrunnable: {named}",
        "correct what the reason names in the job, then resume it",
    )


@fine_unless_found("all jobs declared in code are applied")
def declarations() -> Findings:
    for declaration in Declaration.objects.exclude(error="").select_related("tenant")[:SHOWN]:
        yield problem(
            f"the job {declaration.tenant}/{declaration.name}, declared in code, was refused: {declaration.error}",
            "correct the declaration and restart its worker",
        )
    late = database_now() - timedelta(seconds=DECLARATION_SECONDS)
    if count := Declaration.objects.filter(applied_at=None, error="", declared_at__lt=late).count():
        yield problem(
            f"{counted(count, 'job')} declared in code wait to be applied", "see whether a scheduler is alive"
        )


def log_store() -> Findings:
    try:
        store = open_log_store(settings.LOG_STORE_URL)
        store.check()
    except ValueError:
        yield problem("LOG_STORE_URL names no log store", "set it to file:///an/absolute/folder")
    except OSError as error:
        yield problem(
            f"the log store {store} cannot be written: {error.strerror}",
            "give the workers' user the right to write there, or set LOG_STORE_URL to another store",
        )
    else:
        yield fine(f"the log store {store} can be written")
