"""What the six overlap policies ask of the database costs the same however many runs wait, of one job or of many."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from runs.scheduler.partitions.lock_session import connect
from runs.sql import SQL
from tests.contracts.plans import Cost, cost_of

Connection = psycopg.Connection[Any]

MANY, JOBS = 20_000, 200
WAITING = """
INSERT INTO beatkeeper_live_run
    (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key,
     state, reason, gated)
SELECT gen_random_uuid(), job.tenant_id, 1, job.id, 1, 'schedule', now(), 500, now(), 0, 'demo.hello',
       'blocked', 'overlap', true
FROM beatkeeper_job job CROSS JOIN generate_series(1, %s) WHERE job.id = ANY (%s)
"""


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    """As schedulers work on it."""
    with connect(large, "overlap", 30) as connection:
        yield connection


@pytest.fixture
def waiting(connection: Connection) -> Iterator[list[Any]]:
    """Jobs with a gate and one waiting run each, beside nothing; the first of them has very many."""
    # What other tests wrote and rolled back lies in the index where these runs will lie.
    connection.execute("VACUUM (INDEX_CLEANUP ON) beatkeeper_live_run")
    with connection.transaction(force_rollback=True):
        found = connection.execute(
            "SELECT job.id FROM beatkeeper_job job WHERE NOT EXISTS"
            " (SELECT FROM beatkeeper_live_run live WHERE live.job_id = job.id) LIMIT %s",
            [JOBS],
        )
        jobs = [row[0] for row in found]
        connection.execute(WAITING, [MANY, jobs[:1]])
        connection.execute(WAITING, [1, jobs[1:]])
        connection.execute("INSERT INTO beatkeeper_job_gate (job_id) SELECT unnest(%s::uuid[])", [jobs])
        connection.execute("ANALYZE beatkeeper_live_run, beatkeeper_job_gate")
        yield jobs


def assert_probes(cost: Cost, jobs: int, each: int) -> None:
    assert cost.buffers <= each * jobs + 30, cost
    assert "Seq Scan on beatkeeper_live_run" not in cost.scans, cost
    assert not cost.partitions


def test_a_report_lets_one_go_without_walking_through_all_that_wait(
    connection: Connection, waiting: list[Any]
) -> None:
    cost = cost_of(connection, SQL["release_waiting"], {"jobs": waiting[:1]})
    assert cost.rows == 1
    assert_probes(cost, 1, 60)


def test_a_sweep_lets_one_go_of_each_job(connection: Connection, waiting: list[Any]) -> None:
    cost = cost_of(connection, SQL["release_waiting"], {"jobs": waiting})
    assert cost.rows == JOBS
    assert_probes(cost, JOBS, 60)


def test_a_long_queue_that_has_to_wait_is_not_walked_through(
    connection: Connection, waiting: list[Any]
) -> None:
    connection.execute(
        "UPDATE beatkeeper_live_run SET state = 'ready', reason = '' WHERE id ="
        " (SELECT id FROM beatkeeper_live_run WHERE job_id = %s LIMIT 1)",
        waiting[:1],
    )
    cost = cost_of(connection, SQL["release_waiting"], {"jobs": waiting[:1]})
    assert cost.rows == 0
    assert_probes(cost, 1, 60)


@pytest.mark.parametrize("name", ["unfinished_of_jobs", "jobs_without_others", "take_gates"])
def test_a_trigger_and_a_sweep_look_at_jobs_by_key(
    connection: Connection, waiting: list[Any], name: str
) -> None:
    cost = cost_of(connection, SQL[name], {"jobs": waiting})
    assert cost.rows == JOBS
    assert_probes(cost, JOBS, 15)


def test_others_are_locked_by_key(connection: Connection, waiting: list[Any]) -> None:
    cost = cost_of(connection, SQL["lock_others"], {"jobs": waiting[1:], "most": 1000})
    assert cost.rows == JOBS - 1
    assert_probes(cost, JOBS, 40)


def test_of_very_many_others_a_part_is_locked(connection: Connection, waiting: list[Any]) -> None:
    cost = cost_of(connection, SQL["lock_others"], {"jobs": waiting[:1], "most": 1000})
    assert cost.rows == 1000
    assert_probes(cost, 1000, 10)


def test_jobs_with_waiting_runs_are_found_one_probe_each(connection: Connection, waiting: list[Any]) -> None:
    values = {"reason": "overlap", "after": "00000000-0000-0000-0000-000000000000", "most": JOBS}
    cost = cost_of(connection, SQL["jobs_blocked_for"], values)
    assert cost.rows == JOBS
    assert_probes(cost, JOBS, 8)
