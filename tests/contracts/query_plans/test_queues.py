"""What a team's list of queues costs on a large database: by its own runs, up to a bound."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from runs.scheduler.partitions.lock_session import connect
from runs.services.queues import MAX_COUNTED
from runs.sql import SQL
from tests.contracts.plans import cost_of, settle

Connection = psycopg.Connection[tuple[Any, ...]]
BACKLOG = """
INSERT INTO beatkeeper_live_run
    (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key,
     state, reason, wake_at)
SELECT gen_random_uuid(), 1, 1, job.id, 1, 'schedule', now(), 500, now(), i, 'demo.hello',
       CASE WHEN i % 2 = 0 THEN 'blocked' ELSE 'delayed' END, 'overlap', CASE WHEN i % 2 = 1 THEN now() END
FROM generate_series(1, 5000) i, (SELECT id FROM beatkeeper_job WHERE tenant_id = 1 LIMIT 1) job
"""


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    with connect(large, "queues", 30) as connection:
        settle(connection, "beatkeeper_live_run")
        yield connection


def queue_of(connection: Connection, tenant: int) -> list[int]:
    statement = "SELECT id FROM beatkeeper_queue WHERE tenant_id = %s"
    return [row[0] for row in connection.execute(statement, [tenant])]


def test_counting_a_queue_reads_its_runs_alone(connection: Connection) -> None:
    queues = queue_of(connection, 2)
    (own, running) = connection.execute(
        "SELECT count(*) FILTER (WHERE tenant_id = 2), count(*) FILTER (WHERE state = 'running')"
        " FROM beatkeeper_live_run"
    ).fetchall()[0]
    cost = cost_of(connection, SQL["count_queues"], {"queues": queues, "most": MAX_COUNTED})
    assert cost.rows == 6 and not cost.partitions
    assert "Seq Scan on beatkeeper_live_run" not in cost.scans, cost
    # Of all queues the running ones are read: they are as many as slots.
    assert cost.buffers <= 60 + 2 * own + 2 * running, cost


def test_a_backlog_is_counted_up_to_the_bound(connection: Connection) -> None:
    queues = queue_of(connection, 1)
    (running,) = connection.execute(
        "SELECT count(*) FROM beatkeeper_live_run WHERE state = 'running'"
    ).fetchall()[0]
    with connection.transaction(force_rollback=True):
        connection.execute(BACKLOG)
        cost = cost_of(connection, SQL["count_queues"], {"queues": queues, "most": 100})
        assert cost.buffers <= 6 * 100 * 2 + 2 * running + 100, cost
    # What was rolled back lies in the indexes still, and other tests count what they read there.
    connection.execute("VACUUM beatkeeper_live_run")
