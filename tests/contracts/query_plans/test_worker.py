"""The worker's shipped statements on a large database: cost does not grow with what they do not touch."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from scheduler_project.sdk.ledger.interface import Claim, CompletedClaim
from scheduler_project.sdk.ledger.postgres import SQL, report_values
from scheduler_project.sdk.outcomes import stated_failure
from scheduler_project.sdk.retries import Verdict
from tests.contracts.plans import Cost, cost_of

Row = dict[str, Any]
AT = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = ["demo.hello", "kind:http"]


@pytest.fixture
def connection(large: str) -> Iterator[psycopg.Connection[Row]]:
    with psycopg.connect(large, autocommit=True, prepare_threshold=None, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture
def running(connection: psycopg.Connection[Row]) -> Row:
    row = connection.execute(
        "SELECT * FROM beatkeeper_live_run WHERE state = 'running' ORDER BY id LIMIT 1"
    ).fetchone()
    assert row is not None
    return row


def assert_cheap(cost: Cost, *, buffers_per_row: float, locks: int, partitions: int = 0) -> None:
    assert cost.rows > 0, "the statement found nothing, so its cost says nothing"
    assert cost.buffers_per_row <= buffers_per_row, cost
    assert cost.locks <= locks, cost
    assert len(cost.partitions) <= partitions, cost
    assert not any(scan.startswith("Seq Scan on beatkeeper_live_run") for scan in cost.scans), cost
    assert not any(scan.startswith("Seq Scan on beatkeeper_job") for scan in cost.scans), cost


@pytest.mark.parametrize("name", ["claim", "claim_of_queue"])
@pytest.mark.parametrize("most", [1, 16])
def test_a_claim_reads_what_it_takes_and_no_partition(
    connection: psycopg.Connection[Row], most: int, name: str
) -> None:
    queued = connection.execute(
        "SELECT DISTINCT tenant_id FROM beatkeeper_live_run WHERE state = 'queued'"
    ).fetchall()
    tenants = [row["tenant_id"] for row in queued]
    wanted = {"tokens": [uuid4() for _ in range(most)], "most": most, "known": KNOWN}
    lengths = {"timed_tenants": tenants, "expected_ms": [1] * len(tenants), "batch_ms": 100}
    values = {**_worker(connection), "tenant_id": tenants[0], **wanted, **lengths}
    # With the count of what is queued in the pool, which is bounded.
    assert_cheap(cost_of(connection, SQL[name], values), buffers_per_row=140, locks=87)


def test_a_claim_asked_again_is_found_by_its_token(connection: psycopg.Connection[Row], running: Row) -> None:
    values = {"tokens": [running["claim_token"], *(uuid4() for _ in range(15))], "worker": running["worker"]}
    assert_cheap(cost_of(connection, SQL["claim_again"], values), buffers_per_row=150, locks=33)


@pytest.mark.parametrize("next_state", ["succeeded", "dead", "delayed", "ready"])
def test_a_report_touches_one_partition_of_each_table(
    connection: psycopg.Connection[Row], running: Row, next_state: str
) -> None:
    cost = cost_of(connection, SQL["end_attempts"], report_of([running], next_state))
    assert_cheap(cost, buffers_per_row=120, locks=60, partitions=2)


@pytest.mark.parametrize("next_state", ["succeeded", "delayed"])
def test_a_report_of_many_touches_the_partitions_of_its_runs(
    connection: psycopg.Connection[Row], next_state: str
) -> None:
    rows = connection.execute(
        "SELECT * FROM beatkeeper_live_run WHERE state = 'running' ORDER BY id LIMIT 16"
    ).fetchall()
    assert len(rows) == 16
    days = len({row["id"].int >> 80 for row in rows})
    cost = cost_of(connection, SQL["end_attempts"], report_of(rows, next_state))
    assert_cheap(cost, buffers_per_row=120, locks=60 + 20 * days, partitions=2 * days)


@pytest.mark.parametrize("idle", [False, True])
def test_a_heartbeat_costs_the_same_whatever_is_unfinished(
    connection: psycopg.Connection[Row], idle: bool
) -> None:
    worker = _worker(connection)
    values = {
        "incarnation": worker["worker"], "answered": 0, "number": 1, "slots": 8, "busy": 4, "foreign_busy": 0,
        "held": [uuid4() for _ in range(8)], "draining": False, "skew_ms": 12.5, "lease": 50.0, "idle": idle,
        "has_room": True, "feed_after": 1.0, "queues_after": 0, "most_looking": 400,
    }  # fmt: skip
    # Of the table of live runs the first queued one is read; its planner locks all indexes of it.
    assert_cheap(cost_of(connection, SQL["heartbeat"], values), buffers_per_row=40, locks=35)


def test_queues_with_work_are_found_without_reading_their_backlog(
    connection: psycopg.Connection[Row],
) -> None:
    values = {"pool_id": 1, "known": KNOWN, "feed_after": 1.0, "most": 200, "of_tenant": None}
    cost = cost_of(connection, SQL["queues_with_work"], values)
    queues = connection.execute(
        "SELECT count(DISTINCT tenant_id) AS n FROM beatkeeper_live_run WHERE state = 'queued'"
    ).fetchone()
    assert queues is not None
    assert cost.buffers / queues["n"] <= 30, cost
    assert cost.locks <= 25


def test_what_became_of_claims_is_looked_up_by_token(
    connection: psycopg.Connection[Row], running: Row
) -> None:
    held = [running["claim_token"], *(uuid4() for _ in range(7))]
    values = {"held": held, "incarnation": running["worker"]}
    assert_cheap(cost_of(connection, SQL["claims_in_hand"], values), buffers_per_row=20, locks=15)


def _worker(connection: psycopg.Connection[Row]) -> Row:
    row = connection.execute("SELECT incarnation FROM beatkeeper_worker_node ORDER BY pid LIMIT 1").fetchone()
    assert row is not None
    connection.execute("UPDATE beatkeeper_worker_node SET lease_seconds = 86400")
    return {"worker": row["incarnation"], "pool_id": 1, "grace": 60}


def report_of(running: Sequence[Row], next_state: str) -> Row:
    outcome = stated_failure("transient", "ValueError", "no luck", AT, AT)
    return report_values([CompletedClaim(_claim(row), outcome, Verdict(next_state, 1.0)) for row in running])


def _claim(row: Row) -> Claim:
    return Claim(
        run_id=row["id"], claim_seq=row["claim_seq"], token=row["claim_token"], incarnation=row["worker"],
        attempt=row["attempt"], job_id=row["job_id"], job_name="", version=1, tenant_id=row["tenant_id"], tenant="",
        trigger="", planned_at=AT, claimed_at=AT, target={}, input=None, timeout=60.0, retry={}, gated=False,
        allowed_hosts=[],
    )  # fmt: skip
