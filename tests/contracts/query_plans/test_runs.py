"""Lists of what went wrong on a large database: they read what they show, and none of the successes between."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db.models import QuerySet

from jobs.models import Tenant
from runs import history
from runs.history import ended_as
from runs.models import Run
from scheduler_project.sdk.ids import id_range
from tests.contracts.plans import Cost, cost_of, settle
from tests.support.factories import now

TENANT, SHOWN = 1, 50
# Of one tenant in one hour; each thousandth did not succeed.
MANY = 60_000
Connection = psycopg.Connection[Any]
RUNS = """
INSERT INTO beatkeeper_run
    (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority, state, ended_from, finished_at,
     error_class, error_type, reason, requested_by)
SELECT (lpad(to_hex((extract(epoch FROM planned_at) * 1000)::bigint), 12, '0') || '8' || substr(hash, 1, 3)
        || '8' || substr(hash, 4, 15))::uuid,
       %(tenant)s, job.id, 1, 1, 'schedule', planned_at, 500, state,
       CASE state WHEN 'skipped' THEN '' WHEN 'cancelled' THEN 'ready' ELSE 'running' END, planned_at,
       CASE state WHEN 'dead' THEN 'transient' WHEN 'cancelled' THEN 'cancelled' ELSE '' END,
       CASE state WHEN 'dead' THEN 'ConnectionError' ELSE '' END,
       CASE state WHEN 'skipped' THEN 'overlap_skipped' ELSE '' END, 'a test'
FROM (SELECT now() - make_interval(secs => i * 3600.0 / %(many)s) AS planned_at, md5(i::text) AS hash,
             CASE i %% 3000 WHEN 1 THEN 'dead' WHEN 1001 THEN 'cancelled' WHEN 2001 THEN 'skipped'
                            ELSE 'succeeded' END AS state
      FROM generate_series(1, %(many)s) i) planned, (SELECT id FROM beatkeeper_job LIMIT 1) job
"""


@pytest.fixture(scope="module")
def connection(large: str) -> Iterator[Connection]:
    # Values stand in the statement, as Django sends it.
    with psycopg.connect(
        large, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor
    ) as connection:
        connection.execute(RUNS, {"tenant": TENANT, "many": MANY})
        settle(connection, "beatkeeper_run")
        yield connection
        connection.execute("DELETE FROM beatkeeper_run WHERE requested_by = 'a test'")
        connection.execute("VACUUM ANALYZE beatkeeper_run")


def cost(connection: Connection, runs: QuerySet[Run]) -> Cost:
    statement, values = runs.order_by("-id")[:SHOWN].query.sql_with_params()
    return cost_of(connection, statement, values)


def since(hours: int) -> UUID:
    return id_range(now() - timedelta(hours=hours), now())[0]


def runs_of_tenant() -> history.RunHistory:
    return history.runs().of(Tenant(pk=TENANT)).filter(id__gte=since(48))


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param(lambda: runs_of_tenant().in_states(["dead"]), id="dead"),
        pytest.param(lambda: runs_of_tenant().in_states(["skipped", "cancelled"]), id="two states"),
        pytest.param(lambda: runs_of_tenant().with_error("connection"), id="by error"),
        pytest.param(lambda: runs_of_tenant().filter(ended_as(["cancelled"])), id="in the admin"),
    ],
)
def test_what_went_wrong_is_found_without_reading_successes(
    connection: Connection, runs: Callable[[], QuerySet[Run]]
) -> None:
    found = cost(connection, runs())
    failures = MANY // 1000
    assert found.rows > failures // 4, found
    read = sum(rows for table, rows in found.read.items() if table.startswith("beatkeeper_run"))
    assert read <= failures + 10, found
    assert found.buffers <= 12 * failures, found


def test_successes_are_read_by_the_index_of_all(connection: Connection) -> None:
    found = cost(connection, runs_of_tenant().in_states(["succeeded", "dead"]))
    assert found.rows == SHOWN
    assert found.buffers_per_row <= 12, found
