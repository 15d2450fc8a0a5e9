"""The trigger's shipped statements on a large database: a batch costs the same whatever is due behind it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from jobs.models import COUNTING_WITHOUT_GATE
from runs.sql import SQL
from scheduler_project.sdk.ids import EPOCH, run_id
from tests.contracts.plans import cost_of
from tests.support.factories import now

HELD = list(range(0, 64, 3))
BATCH = 1_000
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    with psycopg.connect(large, autocommit=True, prepare_threshold=None) as connection:
        yield connection


def test_the_idle_probe_reads_one_index_entry_a_slice(connection: Connection) -> None:
    cost = cost_of(connection, SQL["next_due"], {"slices": HELD, "since": EPOCH})
    assert cost.buffers <= 12 * len(HELD), cost
    assert cost.locks <= 10


def test_a_batch_of_due_clocks_is_not_sorted_out_of_all_that_is_due(connection: Connection) -> None:
    values = {"slices": HELD, "since": EPOCH, "until": now(), "share": BATCH // len(HELD)}
    cost = cost_of(connection, SQL["lock_due_clocks"], values)
    assert cost.rows > 500, cost
    assert cost.buffers_per_row <= 8, cost
    assert "Seq Scan on beatkeeper_job_clock" not in cost.scans
    assert cost.locks <= 10


def test_jobs_of_a_batch_are_read_by_key_and_touch_no_partition(connection: Connection) -> None:
    values = {"jobs": due_jobs(connection, BATCH), "need_tags": True, "counting": COUNTING_WITHOUT_GATE}
    cost = cost_of(connection, SQL["jobs_of_clocks"], values)
    assert cost.rows == BATCH
    assert cost.buffers_per_row <= 25, cost
    assert not cost.partitions
    assert cost.locks <= 40


def test_a_batch_of_runs_goes_to_the_partition_of_its_day(connection: Connection) -> None:
    """The run tables have 31 partitions each; the others are not even locked."""
    cost = cost_of(connection, SQL["insert_runs"], new_runs(connection, BATCH))
    assert cost.rows == BATCH
    assert cost.buffers_per_row <= 60, cost
    assert cost.locks <= 30, cost


def test_clocks_are_moved_by_key(connection: Connection) -> None:
    jobs = due_jobs(connection, BATCH)
    values = {"job_id": jobs, "next_run_at": [now() + timedelta(hours=1)] * BATCH}
    cost = cost_of(connection, SQL["move_clocks"], values)
    assert cost.buffers / BATCH <= 25, cost
    assert cost.locks <= 10


def test_ids_that_are_taken_are_looked_up_in_one_partition(connection: Connection) -> None:
    at = now()
    ids = sorted(run_id(job, at) for job in due_jobs(connection, BATCH))
    cost = cost_of(connection, SQL["runs_that_exist"], {"ids": ids, "first": ids[0], "last": ids[-1]})
    assert len(cost.partitions) <= 1, cost
    assert cost.locks <= 20, cost


def due_jobs(connection: Connection, count: int) -> list[Any]:
    rows = connection.execute(
        "SELECT job_id FROM beatkeeper_job_clock ORDER BY next_run_at LIMIT %s", [count]
    )
    return [row[0] for row in rows]


def new_runs(connection: Connection, count: int) -> dict[str, list[Any]]:
    at = now()
    jobs = sorted(due_jobs(connection, count), key=lambda job: run_id(job, at))
    shared = {
        "tenant_id": 1, "version": 1, "pool_id": 1, "trigger": "schedule", "planned_at": at, "priority": 500,
        "state": None, "available_at": at, "rank": 1, "target_key": "demo.hello", "gated": False,
        "live_state": "ready", "reason": "", "wake_at": None,
    }  # fmt: skip
    columns = {name: [value] * count for name, value in shared.items()}
    return {**columns, "id": [run_id(job, at) for job in jobs], "job_id": jobs}
