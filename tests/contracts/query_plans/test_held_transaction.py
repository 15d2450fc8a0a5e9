"""What the hot statements read beside index entries of runs that have ended, while a transaction is held open.

Such a transaction keeps every version of every row, so such an entry cannot be removed (decision 20). Here the test's
own transaction does so: two thousand runs pass through all their states in it.
"""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from runs.scheduler.partitions.lock_session import connect
from runs.sql import SQL as SCHEDULER
from runs.sql import django_session
from runs.states import LiveState
from scheduler_project.sdk.ledger.postgres import SQL as LEDGER
from tests.contracts.plans import cost_of
from tests.contracts.query_plans.test_generic_plans import claim
from tests.contracts.query_plans.test_worker import report_of
from tests.support.factories import make_job, make_run, make_worker

Connection = psycopg.Connection[tuple[Any, ...]]
SQL = {**SCHEDULER, **LEDGER}
PASSED = 2_000
RAN_BEFORE = 10_000
# Pages of indexes that lie between what there is: a statement that looks at each row that has passed reads 2,000.
PAGES_BETWEEN = 250
KEEP_EIGHT_RUNNING = """
DELETE FROM beatkeeper_live_run WHERE state = 'running' AND id NOT IN (
    SELECT id FROM beatkeeper_live_run WHERE state = 'running' ORDER BY id DESC LIMIT 8)
"""
FIRST_READY = "SELECT id FROM beatkeeper_live_run WHERE state = 'ready' ORDER BY rank LIMIT %s"
SINCE = "SELECT min(queued_at) FROM beatkeeper_live_run WHERE state = 'queued'"
MARK_QUEUED = """
UPDATE beatkeeper_live_run SET state = 'queued', queued_at = now() - interval '1 hour' WHERE id = ANY (%s)
"""
CLAIM = """
UPDATE beatkeeper_live_run SET state = 'running', claim_token = gen_random_uuid(), claimed_at = clock_timestamp(),
    worker = (SELECT incarnation FROM beatkeeper_worker_node WHERE pid = 1), wake_at = now() + interval '1 hour'
WHERE id = ANY (%s)
"""


INSERT_RUNS_THAT_RAN = """
INSERT INTO beatkeeper_live_run
SELECT (live).* FROM (
    SELECT jsonb_populate_record(live, jsonb_build_object('id', gen_random_uuid(), 'claim_token', gen_random_uuid(),
                                                          'claim_seq', 99)) AS live
    FROM (SELECT live FROM beatkeeper_live_run live LIMIT 1) one CROSS JOIN generate_series(1, %s)
) copies
"""


@pytest.fixture(params=["worker", "scheduler"])
def connection(large: str, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """Yield a session as workers and as schedulers have it, in a transaction that is rolled back."""
    session = psycopg.connect(large) if request.param == "worker" else connect(large, "held", 60)
    with session, session.transaction(force_rollback=True):
        session.execute(KEEP_EIGHT_RUNNING)
        session.execute("ANALYZE beatkeeper_live_run")
        yield session


def pass_through(connection: Connection) -> None:
    ids = [run for (run,) in connection.execute(FIRST_READY, [PASSED])]
    assert len(ids) == PASSED
    for move in (MARK_QUEUED, CLAIM, "DELETE FROM beatkeeper_live_run WHERE id = ANY (%s)"):
        connection.execute(move, [ids])
    [(since,)] = connection.execute(SINCE)
    connection.execute("UPDATE beatkeeper_pool SET queued_since = %s", [since])


def since(connection: Connection) -> dict[str, Any]:
    [(oldest,)] = connection.execute(SINCE)
    return {"pool": 1, "since": oldest}


def first_ready(connection: Connection) -> dict[str, Any]:
    """Name where the ready runs of each queue begin, as an earlier pass has found them."""
    found = connection.execute(SQL["queues_with_ready_runs"], {"pool": 1}).fetchall()
    tenants, ranks, ids = (list(column) for column in zip(*found, strict=True))
    return {"pool": 1, "tenants": tenants, "ranks": ranks, "ids": ids}


def ready(connection: Connection) -> dict[str, Any]:
    known = first_ready(connection)
    last = UUID(int=2**128 - 1)
    behind = {"ranks": [rank - 1 for rank in known["ranks"]], "ids": [last] * len(known["ids"])}
    return {**known, **behind, "counts": [1] * len(known["ids"]), "need_jobs": False}


def waiting_work(connection: Connection) -> dict[str, Any]:
    known = {"known": ["demo.hello"], "most": 200, "feed_after": 1.0}
    return {"pool_id": 1, "of_tenant": None, **known}


HOT: dict[str, Callable[[Connection], dict[str, Any]]] = {
    "claim": claim,
    "queues_with_work": waiting_work,
    "occupied": lambda connection: {**since(connection), "count": False},
    "queues_known_with_ready_runs": first_ready,
    "next_ready": ready,
}


@pytest.mark.parametrize("name", HOT)
def test_what_has_passed_is_not_looked_at(connection: Connection, name: str) -> None:
    before = cost_of(connection, SQL[name], HOT[name](connection))
    pass_through(connection)
    after = cost_of(connection, SQL[name], HOT[name](connection))
    # What the test has moved is on pages that are no longer known to be visible to all: a look at the row more.
    assert after.buffers <= 1.02 * before.buffers + before.rows + PAGES_BETWEEN, (before, after)


@pytest.fixture
def ran_before(db: None) -> dict[str, Any]:
    """Return what names sixteen runs of a worker, in a table that was analysed while it was empty."""
    session = django_session()
    session.execute("ANALYZE beatkeeper_live_run")
    job = make_job()
    worker = make_worker(job.pool)
    for _ in range(16):
        make_run(job, LiveState.RUNNING, worker=worker)
    session.execute("SET LOCAL session_replication_role = replica")
    session.execute(INSERT_RUNS_THAT_RAN, [RAN_BEFORE])
    session.execute("SET LOCAL session_replication_role = origin")
    session.execute("DELETE FROM beatkeeper_live_run WHERE claim_seq = 99")
    with session.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        rows = cursor.execute("SELECT * FROM beatkeeper_live_run").fetchall()
    held = [row["claim_token"] for row in rows]
    return {**report_of(rows, "succeeded"), "incarnation": worker.incarnation, "held": held}


@pytest.mark.parametrize("name", ["end_attempts", "claims_in_hand"])
def test_what_ran_before_is_not_looked_at(ran_before: dict[str, Any], name: str) -> None:
    """An index of what runs, which the planner expects to be small, has an entry of each."""
    cost = cost_of(django_session(), SQL[name], ran_before)
    assert cost.buffers <= RAN_BEFORE / 2, cost
