"""Rows as the platform makes them: ask for a state, and all that belongs to it comes along."""

from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from jobs.models import JOB_SLICES, Job, JobClock, JobVersion, Pool, Tenant
from runs.models import JobGate, Lane, LiveRun, Run, WorkerNode
from runs.states import LiveState, Trigger
from scheduler_project.sdk.ids import run_id

TASK = "tests.succeeds"
numbers = count(1)


def now() -> datetime:
    """Of this machine, in whole milliseconds as all planned times are."""
    instant = datetime.now(timezone.utc)
    return instant.replace(microsecond=instant.microsecond // 1000 * 1000)


def make_tenant(**fields: Any) -> Tenant:
    slug = fields.pop("slug", f"tenant-{next(numbers)}")
    return Tenant.objects.create(slug=slug, name=fields.pop("name", slug), **fields)


def make_pool(**fields: Any) -> Pool:
    values = {
        "slug": f"pool-{next(numbers)}",
        "shared": True,
        "exported_tasks": [TASK],
        "exported_kinds": ["http", "command"],
    }
    return Pool.objects.create(**{**values, **fields})


def make_job(
    tenant: Tenant | None = None,
    pool: Pool | None = None,
    *,
    next_run_at: datetime | None = None,
    max_concurrency: int | None = None,
    spec: dict[str, Any] | None = None,
    **fields: Any,
) -> Job:
    job = Job.objects.create(
        tenant=tenant or make_tenant(),
        pool=pool or make_pool(),
        name=fields.pop("name", f"job-{next(numbers)}"),
        **fields,
    )
    JobVersion.objects.create(
        **{
            "job": job,
            "version": 1,
            "target": {"kind": "celery", "task": TASK, "args": [], "kwargs": {}},
            "target_key": TASK,
            "schedule": {"every": 60},
            "timeout_ms": 60_000,
            "overlap": "allow_all",
            "catch_up": {"policy": "last", "window": 86_400},
            "retry": {"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 3600.0},
            "max_concurrency": max_concurrency,
            "anchor_at": now(),
            **(spec or {}),
        }
    )
    JobClock.objects.create(job=job, slice=job.id.int % JOB_SLICES, next_run_at=next_run_at)
    if max_concurrency:
        JobGate.objects.create(job=job, max_running=max_concurrency)
    return job


def make_worker(pool: Pool, **fields: Any) -> WorkerNode:
    values = {
        "name": f"worker-{next(numbers)}",
        "host": "host",
        "pid": 1,
        "slots": 4,
        "known_targets": [TASK],
    }
    return WorkerNode.objects.create(incarnation=uuid4(), pool=pool, **{**values, **fields})


def make_lane(job: Job) -> Lane:
    lane, _ = Lane.objects.get_or_create(
        pool=job.pool, tenant=job.tenant, defaults={"queue": f"bk.{job.pool.slug}.{job.tenant.slug}.v1"}
    )
    return lane


def make_run(
    job: Job,
    state: str = LiveState.READY,
    *,
    planned_at: datetime | None = None,
    worker: WorkerNode | None = None,
    **live: Any,
) -> LiveRun:
    """An unfinished run. The database refuses to begin in the middle, so it walks there by legal moves."""
    planned_at = planned_at or now() - timedelta(milliseconds=next(numbers))
    spec = job.spec
    shared = {
        "tenant": job.tenant,
        "pool": job.pool,
        "job": job,
        "version": job.version,
        "trigger": live.pop("trigger", Trigger.SCHEDULE),
        "planned_at": planned_at,
        "priority": job.priority,
    }
    run = Run.objects.create(id=run_id(job.id, planned_at), **shared)
    rank = int(planned_at.timestamp() * 1000) - job.priority * 300
    values = {
        "available_at": planned_at,
        "rank": rank,
        "target_key": spec.target_key,
        "gated": spec.max_concurrency is not None,
        **live,
    }
    born = state if state in (LiveState.DELAYED, LiveState.BLOCKED) else LiveState.READY
    if born == LiveState.DELAYED:
        values.setdefault("wake_at", now())
    LiveRun.objects.create(run=run, state=born, **shared, **values)
    for step in _way_to(state):
        LiveRun.objects.filter(run=run).update(**_belongings(step, worker or None, live))
    return LiveRun.objects.get(run=run)


def _way_to(state: str) -> list[str]:
    way = [LiveState.QUEUED, LiveState.RUNNING, LiveState.WAITING_CALLBACK]
    return way[: way.index(LiveState(state)) + 1] if state in way else []


def _belongings(state: str, worker: WorkerNode | None, asked: dict[str, Any]) -> dict[str, Any]:
    instant = now()
    if state == LiveState.QUEUED:
        return {"state": state, "queued_at": asked.get("queued_at", instant)}
    claimed = asked.get("claimed_at", instant)
    return {
        "state": state,
        "claim_seq": asked.get("claim_seq", 1),
        "attempt": asked.get("attempt", 1),
        "claim_token": asked.get("claim_token", uuid4()),
        "worker": worker.incarnation if worker else asked.get("worker", UUID(int=1)),
        "claimed_at": claimed,
        "started_at": asked.get("started_at", claimed),
        "wake_at": asked.get("wake_at", instant + timedelta(hours=1)),
    }
