"""A database as large as a year of growth makes it, written in bulk: what the planner sees decides the plans."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import psycopg


@dataclass(frozen=True)
class Size:
    jobs: int
    tenants: int
    due: int
    delayed: int
    ready: int
    queued: int
    running: int


FULL = Size(
    jobs=1_000_000, tenants=10_000, due=100_000, delayed=200_000, ready=100_000, queued=20_000, running=2_000
)
SHORT = Size(jobs=40_000, tenants=2_000, due=4_000, delayed=8_000, ready=6_000, queued=4_000, running=400)

DEFINITIONS = """
INSERT INTO beatkeeper_tenant (id, slug, name, weight, allowed_hosts)
    SELECT i, 'tenant-' || i, 'Tenant', 1, '{}' FROM generate_series(1, %(tenants)s) i;
INSERT INTO beatkeeper_pool (id, slug, description, exported_tasks, exported_kinds, shared)
    VALUES (1, 'default', '', '{demo.hello}', '{}', true);
INSERT INTO beatkeeper_job
        (id, tenant_id, name, description, pool_id, status, status_reason, status_by, priority, tags, version)
    SELECT gen_random_uuid(), 1 + i %% %(tenants)s, 'job-' || i, '', 1, 'active', '', '', i %% 1001, '{}', 1
    FROM generate_series(1, %(jobs)s) i;
INSERT INTO beatkeeper_job_version (job_id, version, target, target_key, schedule, timeout_ms, overlap, catch_up,
        retry, anchor_at, created_by)
    SELECT id, 1, jsonb_build_object('kind', 'celery', 'task', 'demo.hello', 'args', '[]'::jsonb,
               'kwargs', jsonb_build_object('payload', repeat(md5(id::text), 30))),
           'demo.hello', '{"every": 3600}', 60000, 'allow_all', '{"policy": "last", "window": 86400}',
           '{"max_attempts": 4, "backoff": "exponential", "base": 10, "cap": 3600}', now(), ''
    FROM beatkeeper_job;
INSERT INTO beatkeeper_job_clock (job_id, slice, next_run_at, priority)
    SELECT id, get_byte(uuid_send(id), 15) & 63,
           CASE WHEN n <= %(due)s THEN now() - make_interval(secs => random() * 30)
                ELSE now() + make_interval(secs => 60 + random() * 86400) END, priority
    FROM (SELECT id, priority, row_number() OVER () AS n FROM beatkeeper_job) numbered;
INSERT INTO beatkeeper_queue (pool_id, tenant_id, broker_queue, queued, day_count)
    SELECT 1, i, 'bk.default.tenant-' || i || '.v2', 0, 0 FROM generate_series(1, %(tenants)s) i;
INSERT INTO beatkeeper_worker_node
        (incarnation, name, pool_id, host, pid, slots, known_targets, state, held)
    SELECT gen_random_uuid(), 'worker-' || i, 1, 'host', i, 100, '{demo.hello}', 'active', '{}'
    FROM generate_series(1, 20) i;
"""
# Unfinished runs planned over the last fifteen days, so that every partition holds some; then as many finished ones.
RUNS = """
CREATE TEMPORARY TABLE new_runs AS
    SELECT (lpad(to_hex((extract(epoch FROM planned_at) * 1000)::bigint), 12, '0') || '8' || substr(hash, 1, 3)
            || '8' || substr(hash, 4, 15))::uuid AS id, *
    FROM (
        SELECT job.id AS job_id, job.tenant_id, job.priority, row_number() OVER () AS n, md5(random()::text) AS hash,
               date_trunc('milliseconds', now() - make_interval(secs => random() * 15 * 86400)) AS planned_at
        FROM (SELECT * FROM beatkeeper_job LIMIT %(unfinished)s * 2) job
    ) planned;
INSERT INTO beatkeeper_run
        (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state, ended_from, finished_at)
    SELECT id, tenant_id, job_id, 1, 1, 'schedule', planned_at, priority,
           CASE WHEN n > %(unfinished)s THEN 'succeeded' END, CASE WHEN n > %(unfinished)s THEN 'running' ELSE '' END,
           CASE WHEN n > %(unfinished)s THEN now() END
    FROM new_runs;
SET session_replication_role = replica;
INSERT INTO beatkeeper_live_run
        (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key,
         state, wake_at, queued_at, worker, claim_token, claimed_at, started_at, claim_seq, attempt)
    SELECT id, tenant_id, 1, job_id, 1, 'schedule', planned_at, priority, planned_at,
           (extract(epoch FROM planned_at) * 1000)::bigint - priority * 300, 'demo.hello', state,
           CASE state WHEN 'delayed' THEN now() + make_interval(secs => random() * 7200 - 10)
                      WHEN 'running' THEN now() + interval '1 hour' END,
           CASE WHEN state IN ('queued', 'running') THEN now() - interval '5 seconds' END,
           CASE WHEN state = 'running'
                THEN (SELECT incarnation FROM beatkeeper_worker_node WHERE pid = 1 + n %% 20) END,
           CASE WHEN state = 'running' THEN gen_random_uuid() END,
           CASE WHEN state = 'running' THEN now() END, CASE WHEN state = 'running' THEN now() END,
           (state = 'running')::int, (state = 'running')::int
    FROM (
        SELECT *, CASE WHEN n <= %(delayed)s THEN 'delayed'
                       WHEN n <= %(delayed)s + %(ready)s THEN 'ready'
                       WHEN n <= %(delayed)s + %(ready)s + %(queued)s THEN 'queued'
                       ELSE 'running' END AS state
        FROM new_runs WHERE n <= %(unfinished)s
    ) live;
RESET session_replication_role;
"""


@contextmanager
def large_database(server: str, name: str, size: Size) -> Iterator[str]:
    """Yield the URL of a filled and analysed database with 31 daily partitions, and drop it at the end."""
    with empty_database(server, name) as url:
        fill(url, size)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
        yield url


@contextmanager
def empty_database(server: str, name: str) -> Iterator[str]:
    url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            _migrate(url)
            yield url
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _migrate(url: str) -> None:
    days = {"BEATKEEPER_HOT_PERIOD_DAYS": "16", "BEATKEEPER_PARTITIONS_AHEAD_DAYS": "14"}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "-v0"],
        check=True,
        env={**os.environ, "DATABASE_URL": url, **days},
    )


def fill(url: str, size: Size) -> None:
    """Write the rows and analyse nothing: plans that were made before stay as they are."""
    unfinished = size.delayed + size.ready + size.queued + size.running
    values = {**vars(size), "unfinished": unfinished}
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("SET synchronous_commit = off")
        for statement in (DEFINITIONS + RUNS).split(";\n"):
            if statement.strip():
                connection.execute(statement, values)
