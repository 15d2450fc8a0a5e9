"""What dispatch and rescue ask on a large database: 10,000 lanes, 200,000 delayed, and no partition."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runs.queries import SQL
from scheduler_project.sdk.ids import attempt_id
from tests.contracts.plans import Cost, cost_of
from tests.factories import now

Connection = psycopg.Connection[tuple[Any, ...]]
POOL = {"pool": 1}


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    with psycopg.connect(large, autocommit=True, prepare_threshold=None) as connection:
        yield connection


def assert_reads(cost: Cost, buffers_per_row: float, locks: int = 30) -> None:
    assert cost.rows > 0, "the statement found nothing, so its cost says nothing"
    assert cost.buffers_per_row <= buffers_per_row, cost
    assert not cost.partitions, cost
    assert cost.locks <= locks, cost
    assert "Seq Scan on beatkeeper_job" not in cost.scans, cost


def test_lanes_with_work_are_found_by_one_probe_each(connection: Connection) -> None:
    assert_reads(cost_of(connection, SQL["lanes_with_ready_runs"], POOL), buffers_per_row=6)


def test_whether_a_pool_has_work_is_one_probe(connection: Connection) -> None:
    assert_reads(cost_of(connection, SQL["pools_with_ready_runs"], {"pools": [1]}), buffers_per_row=20)


def test_occupied_places_are_counted_without_the_backlog(connection: Connection) -> None:
    """200,000 delayed and 100,000 ready rows cost nothing here."""
    nodes = [row[0] for row in connection.execute("SELECT incarnation FROM beatkeeper_worker_node")]
    cost = cost_of(connection, SQL["occupied"], {**POOL, "nodes": nodes})
    (occupied,) = connection.execute(
        "SELECT count(*) FROM beatkeeper_live_run WHERE state IN ('queued', 'running')"
    ).fetchall()[0]
    assert cost.buffers <= 2 * occupied + 100, cost


def test_the_best_of_each_lane_are_read_in_rank_order(connection: Connection) -> None:
    rows = connection.execute(
        "SELECT DISTINCT tenant_id FROM beatkeeper_live_run WHERE state = 'ready' LIMIT 500"
    )
    tenants = [row[0] for row in rows]
    values = {**POOL, "tenants": tenants, "places": [2] * len(tenants)}
    assert_reads(cost_of(connection, SQL["best_ready"], values), buffers_per_row=15)


def test_runs_are_marked_by_key(connection: Connection) -> None:
    ids = _ids(connection, "ready", 500)
    assert_reads(cost_of(connection, SQL["mark_queued"], {"ids": ids}), buffers_per_row=90)


def test_delays_that_are_over_are_found_among_those_that_are_not(connection: Connection) -> None:
    cost = cost_of(connection, SQL["promote_delayed"], {"now": now() + timedelta(seconds=30), "most": 500})
    changed = connection.execute(
        "SELECT least(500, count(*)) FROM beatkeeper_live_run WHERE state = 'delayed' AND wake_at <= now()"
    ).fetchall()[0][0]
    assert changed > 0
    assert cost.buffers <= 100 * 500, cost
    assert "Seq Scan on beatkeeper_live_run" not in cost.scans


def test_silent_nodes_are_found_without_looking_at_runs(connection: Connection) -> None:
    assert_reads(cost_of(connection, SQL["silent_nodes"], {}), buffers_per_row=5)


def test_orphans_are_sought_by_worker(connection: Connection) -> None:
    """Nothing is lost here: the price of looking is a probe for each worker, not each run."""
    cost = cost_of(connection, SQL["orphans"], {"most": 500})
    assert cost.buffers <= 20 * 30, cost
    assert not cost.partitions


def test_claims_nobody_lists_are_sought_among_what_runs(connection: Connection) -> None:
    cost = cost_of(connection, SQL["unlisted_claims"], {"most": 500})
    (running,) = connection.execute(
        "SELECT count(*) FROM beatkeeper_live_run WHERE state = 'running'"
    ).fetchall()[0]
    assert cost.buffers <= 2 * running + 200, cost
    assert not cost.partitions


def test_overdue_claims_are_found_by_their_time(connection: Connection) -> None:
    cost = cost_of(connection, SQL["overdue_claims"], {"now": now() - timedelta(days=1), "most": 500})
    assert cost.buffers <= 20, cost


def test_a_lost_attempt_touches_the_partition_of_its_run(connection: Connection) -> None:
    rows = connection.execute(
        "SELECT id, claim_seq FROM beatkeeper_live_run WHERE state = 'running' ORDER BY id LIMIT 1"
    ).fetchall()
    ids, seqs = [row[0] for row in rows], [row[1] for row in rows]
    values = {
        "ids": ids, "seqs": seqs, "attempt_ids": [attempt_id(*row) for row in rows], "states": ["dead"],
        "delays": [0.0], "line": "lost", "first": min(ids), "last": max(ids),
    }  # fmt: skip
    cost = cost_of(connection, SQL["lose_attempts"], values)
    assert cost.rows == 1
    assert len(cost.partitions) <= 1, cost
    assert cost.locks <= 60, cost


def test_a_cancel_touches_the_partitions_of_its_runs(connection: Connection) -> None:
    ids = _ids(connection, "delayed", 1)
    values = {"ids": ids, "first": min(ids), "last": max(ids), "reason": "no"}
    cost = cost_of(connection, SQL["cancel_live_runs"], values)
    assert cost.rows == 1
    assert len(cost.partitions) <= 1, cost
    assert cost.locks <= 60, cost


def test_jobs_with_blocked_runs_are_found_without_the_rest(connection: Connection) -> None:
    values = {"reason": "concurrency", "after": "00000000-0000-0000-0000-000000000000", "most": 200}
    assert cost_of(connection, SQL["jobs_blocked_for"], values).buffers <= 20


def _ids(connection: Connection, state: str, count: int) -> list[Any]:
    rows = connection.execute(
        "SELECT id FROM beatkeeper_live_run WHERE state = %s ORDER BY id LIMIT %s", [state, count]
    )
    return [row[0] for row in rows]
