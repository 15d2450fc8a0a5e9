"""What a dispatch pass costs beside runs and queues that have nothing to do.

One living worker has all running runs. Before each pass a few runs become ready in ten queues; after it, what was
queued runs, and as many of the running ones end. Passes are as far apart as the scheduler makes small ones.
"""

import time
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.dispatch_loop import GATHER_SECONDS
from runs.scheduler.partitions.lock_session import connect
from tests.benchmarks import stored
from tests.benchmarks.sizes import whole
from tests.benchmarks.stage import Database, Stage, say
from tests.benchmarks.stored import Session

KEYS = (
    "pass_ms",
    "pass_large_ms",
    "pass_mean_large_ms",
    "pass_queues_ms",
    "pass_ratio",
    "queues_ratio",
    "takeover_ms",
)
FEW, FEW_QUEUES = 100, 100
QUEUES_WITH_WORK = 10
READY_A_PASS = 20
POOL = 1
TAKEOVERS = 3
# The tokens are of claims of one run each.
DEFINITIONS = """
UPDATE beatkeeper_tenant SET weight = 1 + id %% 3;
INSERT INTO beatkeeper_queue (pool_id, tenant_id, broker_queue)
    SELECT %(pool)s, id, 'bk.default.tenant-' || id || '.v2' FROM beatkeeper_tenant;
INSERT INTO beatkeeper_worker_node
        (incarnation, name, pool_id, host, pid, slots, known_targets, state, held, lease_seconds)
    SELECT gen_random_uuid(), 'large', %(pool)s, 'host', 1, 2 * %(running)s + 1000, ARRAY[%(task)s], 'active', '{}',
           86400;
WITH job AS (SELECT *, row_number() OVER (ORDER BY tenant_id) - 1 AS place FROM beatkeeper_job)
INSERT INTO beatkeeper_live_run
        (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key, state,
         queued_at, started_at, claimed_at, claim_seq, attempt, claim_token, wake_at, worker)
    SELECT gen_random_uuid(), job.tenant_id, %(pool)s, job.id, 1, 'schedule', now(), 500, now(), n, %(task)s, 'running',
           now(), now(), now(), 1, 1,
           overlay(gen_random_uuid()::text PLACING '00' FROM 35)::uuid,
           now() + interval '1 day', worker.incarnation
    FROM generate_series(1, %(running)s) n JOIN job ON job.place = n %% %(tenants)s, beatkeeper_worker_node worker
"""
MORE_READY = """
INSERT INTO beatkeeper_live_run
        (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key, state)
SELECT gen_random_uuid(), job.tenant_id, %(pool)s, job.id, 1, 'schedule', now(), 500, now(),
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint, %(task)s, 'ready'
FROM generate_series(1, %(ready)s) n JOIN beatkeeper_job job ON job.tenant_id = 1 + n %% %(queues)s
"""
WORK = """
WITH claimed AS (
    UPDATE beatkeeper_live_run SET state = 'running', started_at = now(), claimed_at = now(), claim_seq = 1,
           attempt = 1, claim_token = overlay(gen_random_uuid()::text PLACING '00' FROM 35)::uuid,
           wake_at = now() + interval '1 day', worker = node.incarnation
    FROM beatkeeper_worker_node node WHERE beatkeeper_live_run.state = 'queued' RETURNING 1
)
DELETE FROM beatkeeper_live_run WHERE ctid IN (
    SELECT ctid FROM beatkeeper_live_run WHERE state = 'running' LIMIT (SELECT count(*) FROM claimed)
)
"""


@dataclass
class Passes:
    takeovers: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)


def measure_passes(stage: Stage) -> dict[str, Any]:
    """Time passes at few and at MANY running, and with QUEUES queues that have a run each."""
    many, queues = whole("RUNNING", 100_000), whole("QUEUES", 10_000)
    few = _passes(stage, FEW, FEW_QUEUES)
    large = _passes(stage, many, FEW_QUEUES)
    over_queues = _passes(stage, queues, queues)
    figures = {
        "pass_ms": median(few.ms),
        "pass_large_ms": median(large.ms),
        "pass_mean_large_ms": mean(large.ms),
        "pass_queues_ms": median(over_queues.ms),
        "pass_mean_queues_ms": mean(over_queues.ms),
        "pass_ratio": median(large.ms) / median(few.ms),
        "pass_mean_ratio": mean(large.ms) / mean(few.ms),
        "queues_ratio": median(over_queues.ms) / median(few.ms),
        "takeover_ms": median(large.takeovers),
    }
    return {**{name: round(value, 2) for name, value in figures.items()}, "running": many, "queues": queues}


def _passes(stage: Stage, running: int, tenants: int) -> Passes:
    database, found, memory = _filled(stage, running, tenants), Passes(), PoolMemory()
    with connect(database.url, "passes", 30) as connection:
        for _ in range(TAKEOVERS):
            memory = PoolMemory()
            found.takeovers.append(_pass_ms(database, connection, memory))
        for _ in range(whole("PASSES", 100)):
            found.ms.append(_pass_ms(database, connection, memory))
            time.sleep(GATHER_SECONDS)
    database.session.close()
    say(
        f"{running:,} running in {tenants:,} queues: a pass takes {median(found.ms):.1f} ms (mean"
        f" {mean(found.ms):.1f}, longest {max(found.ms):.1f}), a first one {median(found.takeovers):.1f} ms"
    )
    return found


def _pass_ms(database: Database, connection: Session, memory: PoolMemory) -> float:
    stored.fill_in(
        database.session, MORE_READY, {"pool": POOL, "ready": READY_A_PASS, "queues": QUEUES_WITH_WORK}
    )
    now = stored.database_now(database.session)
    began = time.monotonic()
    done = dispatch_pool(connection, POOL, now, memory)
    ms = 1000 * (time.monotonic() - began)
    assert done.queued == READY_A_PASS, f"{done.queued} of {READY_A_PASS} ready runs were queued"
    stored.fill_in(database.session, WORK)
    return ms


def _filled(stage: Stage, running: int, tenants: int) -> Database:
    database = Database(stage.migrated(f"passes{running}"), tenants)
    stored.fill(database.session, tenants, tenants=tenants, alike=True)
    # No run has a row in the history: dispatch does not read it.
    database.session.execute("SET session_replication_role = replica")
    values = {"pool": POOL, "running": running, "tenants": tenants}
    for statement in DEFINITIONS.split(";\n"):
        stored.fill_in(database.session, statement, values)
    stored.settle(database.session)
    return database
