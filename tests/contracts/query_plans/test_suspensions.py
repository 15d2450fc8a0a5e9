"""What every pass asks of suspensions, and of pauses that end, must cost the same however many there ever were."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from runs.sql import SQL
from tests.contracts.plans import cost_of
from tests.support.factories import now

Connection = psycopg.Connection[tuple[Any, ...]]
SETTLED = 20_000


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    with psycopg.connect(large, autocommit=True, prepare_threshold=None) as connection:
        yield connection


@pytest.fixture
def settled_suspensions(connection: Connection) -> Iterator[None]:
    connection.execute(
        "INSERT INTO beatkeeper_suspension (kind, effect, tag_name, tag_value, reason, begins_at, ends_at, settled_at,"
        " lifted_by, created_by) SELECT 'pause', 'hold', '', '', 'of a test', now() - interval '1 day',"
        " now() - interval '1 hour', CASE WHEN number > 3 THEN now() END, '', ''"
        " FROM generate_series(1, %s) AS number",
        [SETTLED],
    )
    connection.execute("ANALYZE beatkeeper_suspension")
    yield
    connection.execute("DELETE FROM beatkeeper_suspension WHERE reason = 'of a test'")


def test_suspensions_that_are_settled_cost_nothing(connection: Connection, settled_suspensions: None) -> None:
    cost = cost_of(connection, SQL["unsettled_suspensions"], {"until": now()})
    assert cost.rows == 3 and cost.buffers <= 12, cost


def test_a_suspension_is_ended_by_its_key(connection: Connection, settled_suspensions: None) -> None:
    ((suspension,),) = connection.execute(
        "SELECT min(id) FROM beatkeeper_suspension WHERE settled_at IS NULL"
    ).fetchall()
    assert (
        cost_of(connection, SQL["lock_over_suspension"], {"suspension": suspension, "now": now()}).buffers
        <= 12
    )
    assert cost_of(connection, SQL["end_suspension"], {"suspension": suspension, "now": now()}).buffers <= 60


def test_pauses_that_end_are_found_without_reading_jobs(connection: Connection) -> None:
    ((job,),) = connection.execute("SELECT id FROM beatkeeper_job LIMIT 1").fetchall()
    cost = cost_of(connection, SQL["pauses_are_over"], {})
    assert cost.rows == 1 and cost.buffers <= 6, cost
    paused = "UPDATE beatkeeper_job SET status = %s, paused_until = %s WHERE id = %s"
    try:
        connection.execute(paused, ["paused", now(), job])
        cost = cost_of(connection, SQL["pauses_are_over"], {})
        assert cost.buffers <= 8, cost
        assert not any(scan.startswith("Seq Scan on beatkeeper_job") for scan in cost.scans)
    finally:
        connection.execute(paused, ["active", None, job])
