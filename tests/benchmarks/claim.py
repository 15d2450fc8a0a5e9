"""Claims and reports a second through the ledger itself: nothing is executed, nothing is triggered.

RUNS queued runs of one queue are claimed and reported by CALLERS processes, each over a connection of its own, as the
children of a worker do it: a report takes the next claims along. Once one by one, once as many at a time as a child
claims of very short runs.
"""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import median
from typing import Any
from uuid import UUID, uuid4

from scheduler_project.sdk.execution.batching import MAX_BATCH
from scheduler_project.sdk.ledger.interface import (
    ALL_TENANTS,
    ClaimRequest,
    CompletedClaim,
    WorkerInfo,
    WorkQueue,
    base_token,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.retries import Verdict
from tests.benchmarks import stored
from tests.benchmarks.sizes import whole
from tests.benchmarks.stage import Database, Stage, say
from tests.benchmarks.throughput import DEFINITIONS, JOBS, NOOP, TASK

KEYS = ("runs_per_second", "ms_per_run", "one_by_one_per_second", "one_by_one_ms")
SUCCESS = Verdict("succeeded")
QUEUED = """
WITH made AS (
    INSERT INTO beatkeeper_run (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority)
    SELECT overlay(overlay(gen_random_uuid()::text PLACING left(at, 8) || '-' || right(at, 4) FROM 1 FOR 13)
                   PLACING '8' FROM 15 FOR 1)::uuid,
           job.tenant_id, job.id, 1, job.pool_id, 'manual', now(), job.priority
    FROM beatkeeper_job job,
         lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') AS at
    RETURNING *
)
INSERT INTO beatkeeper_live_run
        (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, state, target_key)
    SELECT id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, now(),
           row_number() OVER (), 'ready', %(task)s
    FROM made
"""


def measure(stage: Stage) -> dict[str, Any]:
    runs, callers, repeats = whole("RUNS", 10_000), whole("CALLERS", 8), whole("REPEATS", 3)
    database = Database(stage.migrated("claim"), runs)
    values = {"task": TASK, "name": NOOP.jobs, "jobs": runs, **NOOP._asdict()}
    for statement in [*DEFINITIONS.split(";\n"), *JOBS.split(";\n")]:
        stored.fill_in(database.session, statement, values)
    found: dict[int, list[float]] = {1: [], MAX_BATCH: []}
    try:
        for _ in range(repeats):
            for most, rates in found.items():
                rates.append(_rate(database, callers, most))
                say(f"{most} at a time: {rates[-1]:,.0f} runs a second")
    finally:
        database.session.close()
    together, one_by_one = median(found[MAX_BATCH]), median(found[1])
    return {
        "runs_per_second": round(together),
        "ms_per_run": round(1000 * callers / together, 3),
        "one_by_one_per_second": round(one_by_one),
        "one_by_one_ms": round(1000 * callers / one_by_one, 3),
        "at_a_time": MAX_BATCH,
        "callers": callers,
        "repeats": repeats,
    }


def _rate(database: Database, callers: int, most: int) -> float:
    session = database.session
    session.execute(
        "TRUNCATE beatkeeper_live_run, beatkeeper_run, beatkeeper_attempt, beatkeeper_worker_node"
    )
    stored.fill_in(session, QUEUED, {"task": TASK})
    session.execute("UPDATE beatkeeper_live_run SET state = 'queued', queued_at = now()")
    stored.settle(session)
    [(pool,)] = database.rows("SELECT pool_id FROM beatkeeper_live_run LIMIT 1")
    queue = WorkQueue(0, pool, ALL_TENANTS, "")
    with ProcessPoolExecutor(callers, mp_context=get_context("spawn")) as workers:
        incarnations = [uuid4() for _ in range(callers)]
        ready = [
            workers.submit(_register, database.url, incarnation, callers) for incarnation in incarnations
        ]
        for one in ready:
            one.result()
        began = time.monotonic()
        done = [workers.submit(_work, database.url, each, queue, most) for each in incarnations]
        total = sum(one.result() for one in done)
        seconds = time.monotonic() - began
    [(ended, attempts)] = database.rows(
        "SELECT (SELECT count(*) FROM beatkeeper_run WHERE state = 'succeeded'),"
        " (SELECT count(*) FROM beatkeeper_attempt)"
    )
    assert ended == attempts == total == database.jobs, f"{total} told, {ended} ended, {attempts} attempts"
    return total / seconds


def _register(url: str, incarnation: UUID, slots: int) -> None:
    PostgresLedger(url).register(
        WorkerInfo(incarnation, "w", "default", "host", 1, slots, [TASK], lease=3600.0)
    )


def _work(url: str, incarnation: UUID, queue: WorkQueue, most: int) -> int:
    ledger, done = PostgresLedger(url), 0
    claims = ledger.claim(ClaimRequest(incarnation, base_token(), queue, [TASK], most))
    while claims:
        now = now_utc()
        ended = [CompletedClaim(claim, Outcome("succeeded", now, now), SUCCESS) for claim in claims]
        claims = ledger.report(ended, ClaimRequest(incarnation, base_token(), queue, [TASK], most)).claims
        done += len(ended)
    ledger.close()
    return done
