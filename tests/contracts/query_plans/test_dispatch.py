"""What dispatch and recovery ask on a large database: 10,000 queues, 200,000 delayed, and no partition."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runs.scheduler.dispatch.ready_queues import BEGINNING
from runs.scheduler.partitions.lock_session import connect
from runs.sql import SQL, array, quoted
from scheduler_project.sdk.ids import EPOCH
from tests.contracts.plans import Cost, cost_of, settle
from tests.support.factories import now

Connection = psycopg.Connection[tuple[Any, ...]]
POOL = {"pool": 1}
SINCE = {"since": EPOCH}
BLOCKED = """
INSERT INTO beatkeeper_live_run
    (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority, available_at, rank, target_key,
     state, reason, gated)
SELECT gen_random_uuid(), job.tenant_id, 1, job.id, 1, 'schedule', now(), 500, now(), 0, 'demo.hello',
       'blocked', 'not exported', true
FROM beatkeeper_job job CROSS JOIN generate_series(1, 100) WHERE job.id = ANY (%s)
"""
SLOW = {"Seq Scan on beatkeeper_live_run", "Index Scan on beatkeeper_live_run"}


@pytest.fixture
def connection(large: str) -> Iterator[Connection]:
    """As schedulers work on it, without what earlier tests wrote and rolled back."""
    with connect(large, "dispatch", 30) as connection:
        settle(connection, "beatkeeper_live_run")
        yield connection


def assert_reads(cost: Cost, buffers_per_row: float, locks: int = 30) -> None:
    assert cost.rows > 0, "the statement found nothing, so its cost says nothing"
    assert cost.buffers_per_row <= buffers_per_row, cost
    assert not cost.partitions, cost
    assert cost.locks <= locks, cost
    assert "Seq Scan on beatkeeper_job" not in cost.scans, cost


def test_queues_with_work_are_found_by_one_probe_each(connection: Connection) -> None:
    assert_reads(cost_of(connection, SQL["queues_with_ready_runs"], POOL), buffers_per_row=6)


def test_whether_a_pool_has_work_is_one_probe(connection: Connection) -> None:
    assert_reads(cost_of(connection, SQL["pools_with_ready_runs"], {"pools": [1]}), buffers_per_row=20)


def test_what_queues_occupy_is_counted_without_the_backlog(connection: Connection) -> None:
    """200,000 delayed and 100,000 ready rows cost nothing here."""
    cost = cost_of(connection, SQL["occupied"], {**POOL, **SINCE, "count": True})
    (occupied,) = connection.execute(
        "SELECT count(*) FROM beatkeeper_live_run WHERE state IN ('queued', 'running')"
    ).fetchall()[0]
    assert cost.buffers <= 2 * occupied + 100, cost


def test_between_two_counts_nothing_that_runs_is_read(connection: Connection) -> None:
    cost = cost_of(connection, SQL["occupied"], {**POOL, **SINCE, "count": False})
    (queued,) = connection.execute(
        "SELECT count(*) FROM beatkeeper_live_run WHERE state = 'queued' AND pool_id = 1"
    ).fetchall()[0]
    assert cost.read["beatkeeper_live_run"] == queued > 0, cost


def test_what_is_queued_of_each_target_is_counted_among_the_queued(connection: Connection) -> None:
    queued = connection.execute(
        "SELECT tenant_id, count(*) FROM beatkeeper_live_run WHERE state = 'queued' AND pool_id = 1"
        " GROUP BY tenant_id LIMIT 50"
    ).fetchall()
    cost = cost_of(
        connection, SQL["queued_for_own"], {**POOL, **SINCE, "tenants": [row[0] for row in queued]}
    )
    (occupied,) = connection.execute(
        "SELECT count(*) FROM beatkeeper_live_run WHERE state = 'queued' AND pool_id = 1"
    ).fetchall()[0]
    assert cost.rows == len(queued)
    assert cost.buffers <= 2 * occupied + 100, cost


def test_the_best_of_each_queue_are_read_in_rank_order(connection: Connection) -> None:
    rows = connection.execute(
        "SELECT DISTINCT tenant_id FROM beatkeeper_live_run WHERE state = 'ready' LIMIT 500"
    )
    tenants = [row[0] for row in rows]
    rank, beginning = BEGINNING
    behind = {"ranks": [rank] * len(tenants), "ids": [beginning] * len(tenants)}
    values = {**POOL, "tenants": tenants, **behind, "counts": [2] * len(tenants), "need_jobs": True}
    assert_reads(cost_of(connection, SQL["next_ready"], values), buffers_per_row=20)


def test_what_comes_behind_a_run_is_read_in_rank_order(connection: Connection) -> None:
    found = connection.execute(
        "SELECT DISTINCT ON (tenant_id) tenant_id, rank, id FROM beatkeeper_live_run"
        " WHERE state = 'ready' AND pool_id = 1 ORDER BY tenant_id, rank, id LIMIT 100"
    ).fetchall()
    tenants, ranks, ids = map(list, zip(*found, strict=True))
    values = {
        **POOL,
        "tenants": tenants,
        "ranks": ranks,
        "ids": ids,
        "counts": [10] * len(ids),
        "need_jobs": True,
    }
    assert_reads(cost_of(connection, SQL["next_ready"], values), buffers_per_row=40)


def test_a_backlog_of_one_instant_is_read_on_from_its_middle(connection: Connection) -> None:
    """All have one rank then, and sorting them at each pass would hold up everybody in the pool."""
    with connection.transaction(force_rollback=True):
        moved = connection.execute(
            "UPDATE beatkeeper_live_run SET rank = 7, tenant_id = (SELECT min(tenant_id) FROM beatkeeper_queue)"
            " WHERE id IN (SELECT id FROM beatkeeper_live_run WHERE state = 'ready' AND pool_id = 1 LIMIT 5000)"
            " RETURNING id, tenant_id"
        ).fetchall()
        middle, tenant = sorted(moved)[len(moved) // 2]
        behind = {"tenants": [tenant], "ranks": [7], "ids": [middle]}
        values = {**POOL, **behind, "counts": [200], "need_jobs": True}
        cost = cost_of(connection, SQL["next_ready"], values)
    assert cost.rows == 200 < len(moved) / 4
    assert cost.buffers_per_row <= 20, cost
    assert cost.read["beatkeeper_live_run"] <= 200, "what is behind them is not even read"


def test_what_is_recalled_is_found_among_the_queued(connection: Connection) -> None:
    rows = connection.execute(
        "SELECT DISTINCT tenant_id FROM beatkeeper_live_run WHERE state = 'queued' LIMIT 5"
    )
    values = {
        **POOL,
        "tenants": [row[0] for row in rows],
        "counts": [400] * 5,
        "midnight": now(),
        "most": 2000,
        **SINCE,
    }
    cost = cost_of(connection, SQL["recall"], values, rows_written_by="moved")
    assert_reads(cost, buffers_per_row=40)
    assert "Seq Scan on beatkeeper_live_run" not in cost.scans, cost


@pytest.mark.parametrize("name", ["mark_queued", "mark_blocked"])
def test_runs_are_marked_where_they_lie(connection: Connection, name: str) -> None:
    ctids = _ctids(connection, 500)
    values = {"ctids": array(ctids, quoted), "reasons": ["paused"] * len(ctids), **SINCE}
    cost = cost_of(connection, SQL[name], values)
    assert cost.buffers <= 40 * len(ctids), cost
    assert "Tid Scan on beatkeeper_live_run" in cost.scans and not cost.scans & SLOW, cost


def test_what_came_back_unclaimed_is_found_among_all_that_is_ready(connection: Connection) -> None:
    tenants = [row[0] for row in connection.execute("SELECT id FROM beatkeeper_tenant")]
    values = {**POOL, "tenants": tenants, "midnight": now(), "most": 2000}
    cost = cost_of(connection, SQL["uncount_returned"], values)
    assert cost.buffers <= 20, cost


def test_queues_are_read_with_their_tenants_at_once(connection: Connection) -> None:
    tenants = [row[0] for row in connection.execute("SELECT tenant_id FROM beatkeeper_queue LIMIT 500")]
    values = {**POOL, "tenants": tenants}
    assert_reads(cost_of(connection, SQL["queues"], values), buffers_per_row=8)


def test_of_many_queues_those_with_something_to_do_are_read(connection: Connection) -> None:
    """Here four: one that has work, and three that show a reason."""
    with connection.transaction(force_rollback=True):
        first, *others = connection.execute(
            "SELECT tenant_id FROM beatkeeper_queue ORDER BY tenant_id LIMIT 4"
        ).fetchall()
        reasons = "UPDATE beatkeeper_queue SET reason = 'max_running' WHERE tenant_id = ANY (%s)"
        connection.execute(reasons, [[tenant for (tenant,) in others]])
        cost = cost_of(connection, SQL["queues"], {**POOL, "tenants": list(first)})
    assert cost.rows == 4
    assert cost.buffers <= 60, cost
    assert not any(scan.startswith("Seq Scan on beatkeeper_queue") for scan in cost.scans), cost


def test_what_runs_of_a_queue_with_a_limit_is_counted_without_the_others(connection: Connection) -> None:
    ((tenant, running),) = connection.execute(
        "SELECT tenant_id, count(*) FROM beatkeeper_live_run WHERE state = 'running' AND pool_id = 1"
        " GROUP BY tenant_id LIMIT 1"
    ).fetchall()
    cost = cost_of(connection, SQL["running_of_limited"], {**POOL, "tenants": [tenant]})
    assert cost.read["beatkeeper_live_run"] == running, cost


def test_a_pool_is_read_without_counting_tenants(connection: Connection) -> None:
    queues = connection.execute("SELECT count(*) FROM beatkeeper_queue").fetchall()[0][0]
    cost = cost_of(connection, SQL["pool"], {**POOL, **SINCE, "count": True})
    assert cost.buffers <= queues / 50 + 20, cost
    assert cost_of(connection, SQL["pool"], {**POOL, **SINCE, "count": False}).buffers <= 5


def test_delays_that_are_over_are_found_among_those_that_are_not(connection: Connection) -> None:
    cost = cost_of(connection, SQL["promote_delayed"], {"now": now() + timedelta(seconds=30), "most": 500})
    changed = connection.execute(
        "SELECT least(500, count(*)) FROM beatkeeper_live_run WHERE state = 'delayed' AND wake_at <= now()"
    ).fetchall()[0][0]
    assert changed > 0
    assert cost.buffers <= 100 * 500, cost
    assert "Seq Scan on beatkeeper_live_run" not in cost.scans


def test_silent_nodes_are_found_without_looking_at_runs(connection: Connection) -> None:
    assert_reads(cost_of(connection, SQL["present_workers"], {}), buffers_per_row=5)


def test_orphans_are_sought_by_worker(connection: Connection) -> None:
    """Nothing is lost here: the price of looking is a probe for each worker, not each run."""
    cost = cost_of(connection, SQL["claims_of_lost_workers"], {"most": 500})
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


def test_a_cancel_touches_the_partitions_of_its_runs(connection: Connection) -> None:
    ids = _ids(connection, "delayed", 1)
    values = {"ids": ids, "first": min(ids), "last": max(ids), "reason": "no", "hard": False}
    cost = cost_of(connection, SQL["cancel_live_runs"], values)
    assert cost.rows == 1
    assert len(cost.partitions) <= 1, cost
    assert cost.locks <= 60, cost


def test_jobs_with_blocked_runs_are_found_without_the_rest(connection: Connection) -> None:
    values = {"reason": "concurrency", "after": "00000000-0000-0000-0000-000000000000", "most": 200}
    assert cost_of(connection, SQL["jobs_blocked_for"], values).buffers <= 100


def test_the_release_of_a_job_with_a_limit_does_not_walk_through_its_backlog(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        job = _backlog_of_one_job(connection, 3000)
        cost = cost_of(connection, SQL["release_gated"], {"jobs": [job]})
    assert cost.buffers <= 300, cost
    assert not cost.partitions, cost


def test_what_is_under_way_of_jobs_with_a_limit_is_counted_without_their_backlogs(
    connection: Connection,
) -> None:
    """Also before the next ANALYZE tells that they are many."""
    with connection.transaction(force_rollback=True):
        found = connection.execute("SELECT id FROM beatkeeper_job LIMIT 60").fetchall()
        jobs = [job for (job,) in found]
        connection.execute(BLOCKED, [jobs])
        cost = cost_of(connection, SQL["occupied_gates"], {"jobs": jobs})
    assert cost.buffers <= 12 * len(jobs), cost


def test_the_runs_of_a_job_under_a_stop_are_not_walked_through_to_see_that_it_holds(
    connection: Connection,
) -> None:
    with connection.transaction(force_rollback=True):
        job = _backlog_of_one_job(connection, 3000, "paused")
        connection.execute('UPDATE beatkeeper_job SET tags = \'{"team": "pay"}\' WHERE id = %s', [job])
        connection.execute(
            "INSERT INTO beatkeeper_suspension"
            " (kind, effect, tag_name, tag_value, reason, begins_at, lifted_by, created_by)"
            " VALUES ('pause', 'hold', 'team', 'pay', '', now(), '', '')"
        )
        values = {"jobs": [job], "reason": "paused", "now": now() + timedelta(seconds=1), "most": 500}
        cost = cost_of(connection, SQL["release_held"], values)
    assert cost.buffers <= 100, cost


def _backlog_of_one_job(connection: Connection, count: int, reason: str = "concurrency") -> Any:
    job = connection.execute("SELECT id FROM beatkeeper_job LIMIT 1").fetchall()[0][0]
    connection.execute("INSERT INTO beatkeeper_job_gate (job_id, max_running) VALUES (%s, 1)", [job])
    connection.execute(
        "UPDATE beatkeeper_live_run SET job_id = %s, state = 'blocked', reason = %s WHERE id IN"
        " (SELECT id FROM beatkeeper_live_run WHERE state = 'ready' LIMIT %s)",
        [job, reason, count],
    )
    connection.execute("ANALYZE beatkeeper_live_run")
    return job


def _ctids(connection: Connection, count: int) -> list[str]:
    rows = connection.execute(
        "SELECT ctid::text FROM beatkeeper_live_run WHERE state = 'ready' ORDER BY id LIMIT %s", [count]
    )
    return [row[0] for row in rows]


def _ids(connection: Connection, state: str, count: int) -> list[Any]:
    rows = connection.execute(
        "SELECT id FROM beatkeeper_live_run WHERE state = %s ORDER BY id LIMIT %s", [state, count]
    )
    return [row[0] for row in rows]
