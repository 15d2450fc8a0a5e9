"""Rows as the platform makes them: ask for a state, and all that belongs to it comes along."""

from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any
from uuid import UUID, uuid4

from django.contrib.auth.models import User

from jobs.access.api_keys import create_key
from jobs.models import (
    JOB_SLICES,
    OVERLAP_POLICIES,
    ApiKey,
    Effect,
    Job,
    JobClock,
    JobVersion,
    Membership,
    Pool,
    Role,
    Suspension,
    SuspensionKind,
    Tenant,
)
from jobs.services.definition import create_job
from runs.models import Attempt, Breaker, JobGate, LiveRun, Queue, Run, WorkerNode
from runs.reasons import Reason
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk.ids import attempt_id, created_run_id, run_id

TASK = "tests.succeeds"
numbers = count(1)
used: set[datetime] = set()


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
    if max_concurrency or OVERLAP_POLICIES[job.spec.overlap].needs_gate or job.spec.breaker:
        JobGate.objects.create(job=job, max_running=max_concurrency)
    if breaker := job.spec.breaker:
        cooldown_ms = breaker["cooldown"] * 1000
        Breaker.objects.create(job=job, limit=breaker["failures"], cooldown_ms=cooldown_ms)
    return job


def make_suspension(**fields: Any) -> Suspension:
    """Make a pause of everything since an hour ago, unless fields say otherwise."""
    values = {
        "kind": SuspensionKind.PAUSE,
        "effect": Effect.CATCH_UP,
        "begins_at": now() - timedelta(hours=1),
    }
    return Suspension.objects.create(**{**values, **fields})


def make_worker(pool: Pool, **fields: Any) -> WorkerNode:
    values = {
        "name": f"worker-{next(numbers)}",
        "host": "host",
        "pid": 1,
        "slots": 4,
        "known_targets": [TASK],
    }
    return WorkerNode.objects.create(incarnation=uuid4(), pool=pool, **{**values, **fields})


def make_queue(job: Job) -> Queue:
    queue, _ = Queue.objects.get_or_create(
        pool=job.pool,
        tenant=job.tenant,
        defaults={"broker_queue": f"bk.{job.pool.slug}.{job.tenant.slug}.v2"},
    )
    return queue


def make_run(
    job: Job,
    state: str = LiveState.READY,
    *,
    planned_at: datetime | None = None,
    worker: WorkerNode | None = None,
    **live: Any,
) -> LiveRun:
    """Make an unfinished run by legal moves, because the database refuses to begin in the middle."""
    planned_at = planned_at or _unused_instant()
    used.add(planned_at)
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
        "gated": spec.max_concurrency is not None
        or OVERLAP_POLICIES[spec.overlap].needs_gate
        or spec.breaker is not None,
        **live,
    }
    first = state if state in (LiveState.DELAYED, LiveState.BLOCKED) else LiveState.READY
    if first == LiveState.DELAYED:
        values.setdefault("wake_at", now())
    if values.get("reason") == Reason.RETRY_BUDGET:
        values["budget_tenant"] = job.tenant_id
    LiveRun.objects.create(run=run, state=first, **shared, **values)
    for step in _way_to(state):
        LiveRun.objects.filter(run=run).update(**_belongings(step, worker or None, live))
    return LiveRun.objects.get(run=run)


def _unused_instant() -> datetime:
    """Return an instant just past; no two runs of a job are planned for the same."""
    instant = now()
    while instant in used:
        instant -= timedelta(milliseconds=1)
    return instant


def _way_to(state: str) -> list[LiveState]:
    way = [LiveState.QUEUED, LiveState.RUNNING, LiveState.WAITING_CALLBACK]
    return way[: way.index(LiveState(state)) + 1] if state in way else []


def _belongings(state: str, worker: WorkerNode | None, asked: dict[str, Any]) -> dict[str, Any]:
    instant = now()
    if state == LiveState.QUEUED:
        return {"state": state, "queued_at": asked.get("queued_at", instant)}
    claimed = asked.get("claimed_at", instant)
    if state == LiveState.WAITING_CALLBACK:
        wake_at = asked.get("wake_at", instant + timedelta(hours=1))
        digest = asked.get("callback_digest", "0" * 64)
        return {"state": state, "claim_token": None, "wake_at": wake_at, "callback_digest": digest}
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


def make_key(tenant: Tenant | None = None, role: Role = Role.ADMIN, **fields: Any) -> tuple[ApiKey, str]:
    """Return the key and its text, which is shown this once."""
    return create_key(tenant or make_tenant(), fields.pop("name", "key of a test"), role, **fields)


def make_user(tenant: Tenant | None = None, role: Role = Role.VIEWER, **fields: Any) -> User:
    name = fields.pop("username", f"user-{next(numbers)}")
    user = User.objects.create_user(name, password="only-for-tests", **fields)
    if tenant is not None:
        Membership.objects.create(user=user, tenant=tenant, role=role)
    return user


def job_spec(**values: Any) -> dict[str, Any]:
    """As a team posts it: on demand in the default pool, unless told otherwise."""
    target = {"kind": "celery", "task": TASK, "args": [], "kwargs": {}}
    return {"name": f"job-{next(numbers)}", "target": target, **values}


def post_job(tenant: Tenant | None = None, **spec: Any) -> Job:
    """Make a job as the service does, with all that belongs to it."""
    slug = spec.get("pool", "default")
    if not Pool.objects.filter(slug=slug).exists():
        make_pool(slug=slug)
    return create_job(tenant or make_tenant(), job_spec(**spec))


def make_attempt(live: LiveRun, outcome: str = "failed", **fields: Any) -> Attempt:
    """One that is over, as the report of the worker that has the run leaves it."""
    values = {
        "number": live.attempt,
        "claim_seq": live.claim_seq,
        "worker": live.worker or uuid4(),
        "worker_name": "worker-7",
        "started_at": live.claimed_at or now(),
        "finished_at": now(),
        "next_state": "succeeded" if outcome == "succeeded" else "dead",
        **fields,
    }
    identity = attempt_id(live.pk, values["claim_seq"])
    return Attempt.objects.create(id=identity, run_id=live.pk, tenant=live.tenant, outcome=outcome, **values)


def make_due(job: Job, planned_at: datetime | None = None) -> datetime:
    """Its clock is behind, as if no scheduler had come by."""
    planned_at = planned_at or now() - timedelta(seconds=1)
    JobClock.objects.filter(job=job).update(next_run_at=planned_at)
    return planned_at


def make_finished_run(
    job: Job,
    state: FinalState = FinalState.SUCCEEDED,
    *,
    planned_at: datetime | None = None,
    trigger: Trigger = Trigger.SCHEDULE,
    **fields: Any,
) -> Run:
    planned_at = planned_at or now() - timedelta(seconds=next(numbers))
    planned = trigger in (Trigger.SCHEDULE, Trigger.CATCH_UP)
    ran = state not in (FinalState.SKIPPED, FinalState.CANCELLED)
    belongings = {"ended_from": LiveState.RUNNING, "attempts": 1, "started_at": planned_at} if ran else {}
    # As the statements that end them leave them; a failure says why.
    ending: dict[FinalState, dict[str, Any]] = {
        FinalState.DEAD: {"error_class": "transient"},
        FinalState.CANCELLED: {"ended_from": LiveState.READY, "error_class": "cancelled"},
        FinalState.SKIPPED: {"reason": Reason.OVERLAP_SKIPPED},
    }
    values = {
        "id": run_id(job.id, planned_at) if planned else created_run_id(planned_at, uuid4().bytes),
        "version": job.version,
        "trigger": trigger,
        "planned_at": planned_at,
        "priority": job.priority,
        "finished_at": planned_at + timedelta(seconds=1),
        **belongings,
        **ending.get(state, {}),
        **fields,
    }
    return Run.objects.create(tenant=job.tenant, pool=job.pool, job=job, state=state, **values)


def make_dead(job: Job, **fields: Any) -> Run:
    """Make a run that died of an error, as the statement that ends it leaves it: with its dead letter."""
    live = make_run(job, LiveState.RUNNING, **fields.pop("live", {}))
    values = {
        "error_class": "transient",
        "error_type": "ConnectionError",
        "error_line": "no answer",
        "fingerprint": "f00d",
        "finished_at": now(),
        **fields,
    }
    Run.objects.filter(pk=live.pk).update(
        state=FinalState.DEAD, ended_from=live.state, attempts=live.attempt, **values
    )
    LiveRun.objects.filter(pk=live.pk).delete()
    return Run.objects.get(pk=live.pk)
