"""The hot statements by plans that know no values, made while the tables were empty: as of a new installation.

A prepared statement gets such a plan sooner or later, and keeps it until the table is analysed.
"""

import os
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from runs.scheduler.dispatch.ready_queues import BEGINNING
from runs.scheduler.partitions.lock_session import connect
from runs.sql import SQL as SCHEDULER
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.ledger.postgres import SQL as LEDGER
from tests.contracts.large_database import SHORT, empty_database, fill
from tests.contracts.plans import Cost, cost_of
from tests.contracts.query_plans.test_trigger import due_jobs, new_runs
from tests.contracts.query_plans.test_worker import KNOWN, report_of
from tests.support.factories import now

Connection = psycopg.Connection[tuple[Any, ...]]
Values = Callable[[Connection], dict[str, Any]]
SQL = {**SCHEDULER, **LEDGER}
PARAMETER = re.compile(r"%\((\w+)\)s|%%")
MOST = 16
SINCE = {"since": EPOCH}
# This tenant has a long queue; the others have two or three runs each.
BUSY = 1
BACKLOG = """
UPDATE beatkeeper_live_run SET tenant_id = %(busy)s
WHERE id IN (SELECT id FROM beatkeeper_live_run WHERE state = %(state)s LIMIT 2000)
"""


def as_prepared(name: str) -> tuple[str, str]:
    """Return the statement with numbers for its parameters, and what executes it with values by name."""
    names = list(dict.fromkeys(filter(None, PARAMETER.findall(SQL[name]))))

    def numbered(match: re.Match[str]) -> str:
        return f"${names.index(match[1]) + 1}" if match[1] else "%"

    values = ", ".join(f"%({parameter})s" for parameter in names)
    return PARAMETER.sub(numbered, SQL[name]), f"EXECUTE {name} ({values})" if names else f"EXECUTE {name}"


def queued_tenants(connection: Connection, state: str = "queued") -> list[int]:
    tenants = "SELECT DISTINCT tenant_id FROM beatkeeper_live_run WHERE state = %s ORDER BY tenant_id"
    return [tenant for (tenant,) in connection.execute(tenants, [state])]


def claim(connection: Connection, own_tenant: int | None = None) -> dict[str, Any]:
    tenants = queued_tenants(connection)
    lengths = {"timed_tenants": tenants, "expected_ms": [1] * len(tenants), "batch_ms": 100}
    [(worker,)] = connection.execute(
        "UPDATE beatkeeper_worker_node SET lease_seconds = 86400, tenant_id = %s WHERE pid = 1"
        " RETURNING incarnation",
        [own_tenant],
    )
    tokens = [uuid4() for _ in range(MOST)]
    request = {"tokens": tokens, "most": MOST, "known": KNOWN, "tenant_id": own_tenant}
    return {**request, **lengths, "worker": worker, "pool_id": 1, "grace": 60}


def claim_of_queue(connection: Connection) -> dict[str, Any]:
    """Name the queue of a tenant's own worker, which need not read what others have queued."""
    return claim(connection, next(tenant for tenant in queued_tenants(connection) if tenant != BUSY))


def claim_again(connection: Connection) -> dict[str, Any]:
    running = "SELECT worker, claim_token FROM beatkeeper_live_run WHERE state = 'running' LIMIT 1"
    [(worker, token)] = connection.execute(running)
    return {"tokens": [token, *(uuid4() for _ in range(MOST))], "worker": worker}


def report(connection: Connection) -> dict[str, Any]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        # Of one day, as nearly all that are reported together are.
        cursor.execute("SELECT * FROM beatkeeper_live_run WHERE state = 'running' ORDER BY id DESC LIMIT 8")
        return report_of(cursor.fetchall(), "succeeded")


def ready(connection: Connection) -> dict[str, Any]:
    tenants, (rank, run) = queued_tenants(connection, "ready")[:100], BEGINNING
    count = len(tenants)
    behind = {"ranks": [rank] * count, "ids": [run] * count, "counts": [2] * count}
    return {"pool": 1, "tenants": tenants, **behind, "need_jobs": True}


def recalled(connection: Connection) -> dict[str, Any]:
    tenants = queued_tenants(connection)[:100]
    return {
        "pool": 1,
        "tenants": tenants,
        "counts": [2] * len(tenants),
        "midnight": now(),
        "most": 2000,
        **SINCE,
    }


def marked(connection: Connection) -> dict[str, Any]:
    rows = connection.execute("SELECT ctid::text FROM beatkeeper_live_run WHERE state = 'ready' LIMIT 100")
    return {"ctids": [ctid for (ctid,) in rows], **SINCE}


def due(_: Connection) -> dict[str, Any]:
    return {"slices": list(range(64)), "since": EPOCH, "until": now(), "share": 10}


def due_batch(connection: Connection) -> dict[str, Any]:
    return {"jobs": due_jobs(connection, 200), "need_tags": True, "counting": []}


# By name: the values, the most buffers of one execution, and the most rows of the large tables that it reads. A claim
# counts what is queued: at most 16 for each of 100 slots.
HOT: dict[str, tuple[Values, int, int]] = {
    "claim": (claim, 2_500, 1_900),
    "claim_of_queue": (claim_of_queue, 200, 60),
    "claim_again": (claim_again, 200, 60),
    "end_attempts": (report, 1_000, 100),
    "queues_with_ready_runs": (lambda _: {"pool": 1}, 9_000, 2_500),
    "pools_with_ready_runs": (lambda _: {"pools": [1]}, 20, 2),
    "next_ready": (ready, 5_000, 600),
    "mark_queued": (marked, 5_000, 200),
    "recall": (recalled, 6_000, 1_200),
    "occupied": (lambda _: {"pool": 1, "count": True, **SINCE}, 10_000, 5_000),
    "next_due": (lambda _: {"slices": list(range(64)), **SINCE}, 800, 100),
    "lock_due_clocks": (due, 6_000, 1_000),
    "jobs_of_clocks": (due_batch, 5_000, 1_000),
    "insert_runs": (lambda connection: new_runs(connection, 200), 12_000, 1_000),
}


FEW_RUNS = """
SET session_replication_role = replica;
INSERT INTO beatkeeper_live_run (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at,
                                 rank, target_key, state)
    SELECT gen_random_uuid(), 1, 1, gen_random_uuid(), 1, 'manual', now(), 0, now(), 0, '', 'ready'
    FROM generate_series(1, 6);
ANALYZE beatkeeper_live_run;
DELETE FROM beatkeeper_live_run;
RESET session_replication_role;
"""


# What a worker prepares is planned by options of its own.
PREPARED = ("claim", "claim_of_queue")


@pytest.fixture(scope="module")
def planned(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """Yield a session that prepared each statement before the tables were filled.

    A scheduler's had empty tables. A worker's had six runs, by the last ANALYZE.
    """
    name = f"beatkeeper_large_{os.environ['BEATKEEPER_TEST_ID']}_{request.param.replace(' ', '_')}"
    with empty_database(os.environ["DATABASE_URL"], name) as url, _session(url, request.param) as connection:
        never_analysed(connection)
        connection.cursor_factory = psycopg.ClientCursor
        connection.execute("SET plan_cache_mode = force_generic_plan")
        if request.param == "worker":
            connection.execute(FEW_RUNS)
        for statement in HOT:
            text, execute = as_prepared(statement)
            connection.execute(f"PREPARE {statement} AS {text}")
            with connection.transaction(force_rollback=True):
                connection.execute(re.sub(r"%\(\w+\)s", "NULL", execute))
        fill(url, SHORT)
        for state in ("ready", "queued"):
            connection.execute(BACKLOG, {"busy": BUSY, "state": state})
        yield connection


def _session(url: str, kind: str) -> Connection:
    if kind == "scheduler":
        return connect(url, "planned", 60)
    connection = psycopg.connect(url, autocommit=True)
    # `true` limits each setting to a transaction, and the worker says so in each; here it is the session's.
    connection.execute(SQL["plan_generically"].replace("true)", "false)"))
    return connection


def never_analysed(connection: Connection) -> None:
    tables = "SELECT oid::regclass FROM pg_class WHERE relkind = 'r' AND relname LIKE 'beatkeeper%'"
    for (table,) in connection.execute(tables).fetchall():
        connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")


def read(cost: Cost) -> int:
    tables = ("beatkeeper_live_run", "beatkeeper_job", "beatkeeper_job_version", "beatkeeper_job_clock")
    return sum(cost.read.get(table, 0) for table in tables)


@pytest.mark.parametrize(
    ("planned", "name"),
    [*(("scheduler", name) for name in HOT), *(("worker", name) for name in PREPARED)],
    indirect=["planned"],
)
def test_a_plan_of_empty_tables_serves_full_ones(planned: Connection, name: str) -> None:
    values, buffers, rows = HOT[name]
    cost = cost_of(planned, as_prepared(name)[1], values(planned))
    assert cost.buffers <= buffers and read(cost) <= rows, cost
    assert len(cost.partitions) <= 2 and not any(scan.startswith("Seq Scan") for scan in cost.scans), cost
