"""Dead letters after a bad night: what is asked costs by what is shown, not by how much has died."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from runs.scheduler.partitions.lock_session import connect
from runs.services.dead_letters import MAX_COUNTED, MAX_GROUPS
from runs.sql import SQL
from tests.contracts.plans import Cost, cost_of, settle
from tests.support.factories import now

Connection = psycopg.Connection[tuple[Any, ...]]
TENANT, GROUPS = 1, 20
MANY = int(os.environ.get("BEATKEEPER_TEST_LETTERS", "200000"))
# Most of one tenant and one error; the rest is spread over errors and tenants, and every tenth is decided.
LETTERS = """
INSERT INTO beatkeeper_dead_letter
    (run_id, tenant_id, job_id, fingerprint, error_class, error_type, error_line, died_at, decision, decided_at)
SELECT gen_random_uuid(), CASE WHEN i %% 4 = 0 THEN 2 + i %% 500 ELSE %(tenant)s END, job.id,
       CASE WHEN i %% 3 = 0 THEN 'f' || i %% %(groups)s ELSE 'storm' END, 'transient', 'ConnectionError', 'no answer',
       now() - make_interval(secs => i * 86400.0 / %(many)s), CASE WHEN i %% 10 = 0 THEN 'dismissed' ELSE '' END,
       CASE WHEN i %% 10 = 0 THEN now() END
FROM generate_series(1, %(many)s) i, (SELECT id FROM beatkeeper_job LIMIT 1) job
"""


@pytest.fixture(scope="module")
def letters(large: str) -> Iterator[str]:
    with psycopg.connect(large, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute(LETTERS, {"tenant": TENANT, "groups": GROUPS, "many": MANY})
        settle(connection, "beatkeeper_dead_letter")
        yield large
        connection.execute("TRUNCATE beatkeeper_dead_letter")


@pytest.fixture
def connection(letters: str) -> Iterator[Connection]:
    with connect(letters, "dead letters", 30) as connection:
        yield connection


def assert_cheap(cost: Cost, buffers: int) -> None:
    assert cost.rows > 0, "the statement found nothing, so its cost says nothing"
    assert cost.buffers <= buffers, cost
    assert "Seq Scan on beatkeeper_dead_letter" not in cost.scans, cost
    assert not cost.partitions, cost


def test_groups_are_found_by_probes_and_counted_up_to_a_bound(connection: Connection) -> None:
    values = {"tenants": [TENANT], "fingerprint": None, "most": MAX_GROUPS, "most_counted": MAX_COUNTED}
    cost = cost_of(connection, SQL["groups"], values)
    assert cost.rows > GROUPS // 2
    assert_cheap(cost, buffers=cost.rows * 400)


def test_tenants_with_dead_letters_are_found_by_one_probe_each(connection: Connection) -> None:
    cost = cost_of(connection, SQL["tenants_with_dead_letters"], {"most": 500})
    assert_cheap(cost, buffers=8 * cost.rows)


@pytest.mark.parametrize("decision", ["", "dismissed"])
def test_a_page_of_a_group_reads_a_page(connection: Connection, decision: str) -> None:
    page = (
        "SELECT run_id FROM beatkeeper_dead_letter WHERE tenant_id = %(tenant)s AND fingerprint = 'storm'"
        " AND decision = %(decision)s ORDER BY died_at DESC, run_id DESC LIMIT 51"
    )
    cost = cost_of(connection, page.replace("%(decision)s", f"'{decision}'"), {"tenant": TENANT})
    assert_cheap(cost, buffers=120)


def test_a_step_of_a_redrive_reads_its_next_letters_however_far_it_has_come(connection: Connection) -> None:
    values = {
        "tenant": TENANT, "fingerprint": "storm", "cursor_at": now() - timedelta(hours=4), "cursor": UUID(int=0),
        "until": now(), "most": 100, "redrive": UUID(int=0),
    }  # fmt: skip
    assert_cheap(cost_of(connection, SQL["dead_letters_after"], values), buffers=250)


def test_whether_a_redrive_is_due_is_a_probe(connection: Connection) -> None:
    cost = cost_of(connection, SQL["redrives_are_due"], {})
    assert cost.buffers <= 5, cost


def test_a_dismissal_of_a_group_costs_by_what_it_dismisses(connection: Connection) -> None:
    values = {"tenant": TENANT, "fingerprint": "storm", "now": now(), "by": "x", "reason": "x", "most": 100}
    cost = cost_of(connection, SQL["dismiss_group"], values)
    assert_cheap(cost, buffers=100 * 60)


def test_the_next_retries_of_a_tenant_at_its_budget_are_found_by_rank(connection: Connection) -> None:
    storm = (
        "INSERT INTO beatkeeper_live_run (id, tenant_id, pool_id, job_id, version, trigger, planned_at, priority,"
        " available_at, rank, target_key, state, reason, budget_tenant)"
        " SELECT gen_random_uuid(), 1, 1, job.id, 1, 'schedule', now(), 500, now(), i,"
        " 'demo.hello', 'blocked', 'retry_budget', 1"
        " FROM generate_series(1, 5000) i, (SELECT id FROM beatkeeper_job LIMIT 1) job"
    )
    with connection.transaction(force_rollback=True):
        connection.execute(storm)
        waiting = cost_of(connection, SQL["tenants_at_their_budget"], {})
        assert waiting.rows == 1 and waiting.buffers <= 60, waiting
        cost = cost_of(connection, SQL["release_retries"], {"tenants": [1], "counts": [50]})
        # Those 50 alone, once to choose and once to move them: a scan of another index reads all that wait.
        assert cost.read["beatkeeper_live_run"] == 2 * 50 and cost.buffers <= 4 * 50, cost
    # What was rolled back lies in the indexes still, and other tests count what they read there.
    connection.execute("VACUUM beatkeeper_live_run")
