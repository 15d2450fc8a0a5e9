"""What is asked every few seconds to know how far behind anything is must cost the same however much there is."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from jobs.models import JOB_SLICES
from runs.reasons import NOT_HELD
from runs.sql import SQL
from tests.contracts.plans import cost_of

Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    with psycopg.connect(large, autocommit=True, prepare_threshold=None) as connection:
        yield connection


def test_watermarks_read_one_index_entry_a_slice(connection: Connection) -> None:
    cost = cost_of(connection, SQL["watermarks"], {"slices": JOB_SLICES})
    assert cost.rows == JOB_SLICES
    assert cost.buffers <= 12 * JOB_SLICES, cost
    assert cost.locks <= 5


def test_the_oldest_waiting_run_is_found_by_the_head_of_each_queue(connection: Connection) -> None:
    ((queues, ready),) = connection.execute(
        "SELECT count(DISTINCT (pool_id, tenant_id)), count(*) FROM beatkeeper_live_run WHERE state = 'ready'"
    ).fetchall()
    cost = cost_of(connection, SQL["oldest_waiting"], {"not_held": list(NOT_HELD)})
    assert ready >= 3 * queues > 0
    assert cost.rows >= 1
    assert cost.buffers <= 12 * queues, cost
    assert "Seq Scan on beatkeeper_live_run" not in cost.scans
