"""A step of catch-up costs the same however much was ever missed, and however much is still to be made up for."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from jobs.models import COUNTING_POLICIES
from runs.sql import SQL
from tests.contracts.plans import cost_of, settle
from tests.support.factories import now

HELD = list(range(0, 64, 3))
BATCH = 500
Connection = psycopg.Connection[tuple[Any, ...]]

# Of each job a span that is settled, of every second one that is worked off, of every third one that is open.
SPANS = """
INSERT INTO beatkeeper_suspension (id, kind, effect, tag_name, tag_value, reason, begins_at, lifted_by, created_by)
    VALUES (1, 'pause', 'catch_up', '', '', '', now() - interval '1 day', '', '');
INSERT INTO beatkeeper_missed_span
        (tenant_id, job_id, version, slice, begins_at, ends_at, reason, policy, state, suspension_id, cursor, next_at,
         count)
    SELECT job.tenant_id, clock.job_id, 1, clock.slice, now() - interval '2 hours', now() - interval '1 hour',
           'downtime', 'all', kind.state, kind.suspension_id, now() - interval '2 hours',
           now() + make_interval(secs => random() * 3600 - 360), kind.count
    FROM (SELECT *, row_number() OVER (ORDER BY job_id) AS n FROM beatkeeper_job_clock) clock
    JOIN beatkeeper_job job ON job.id = clock.job_id
    JOIN (VALUES (1, 'settled', NULL, 9), (2, 'working', NULL, NULL), (3, 'open', 1, NULL))
        AS kind (every, state, suspension_id, count) ON clock.n % kind.every = 0
"""


@pytest.fixture(scope="module")
def connection(large: str) -> Iterator[Connection]:
    with psycopg.connect(large, autocommit=True, prepare_threshold=None) as connection:
        for statement in SPANS.split(";\n"):
            connection.execute(statement)
        settle(connection, "beatkeeper_missed_span")
        yield connection
        connection.execute("DELETE FROM beatkeeper_missed_span")
        connection.execute("DELETE FROM beatkeeper_suspension")


def test_the_idle_probe_reads_one_index_entry_a_slice(connection: Connection) -> None:
    cost = cost_of(connection, SQL["next_catch_up"], {"slices": HELD})
    assert cost.buffers <= 12 * len(HELD), cost
    assert "Seq Scan on beatkeeper_missed_span" not in cost.scans


def test_due_spans_are_not_sorted_out_of_all_that_are(connection: Connection) -> None:
    values = {"slices": HELD, "now": now(), "share": BATCH // len(HELD)}
    cost = cost_of(connection, SQL["jobs_with_due_spans"], values)
    assert cost.rows > BATCH / 4, cost
    assert cost.buffers_per_row <= 12, cost


def test_what_waits_for_a_suspension_is_found_by_it(connection: Connection) -> None:
    values = {"suspension": 1, "slices": HELD, "most": BATCH}
    cost = cost_of(connection, SQL["jobs_with_open_spans"], values)
    assert cost.rows == BATCH
    assert cost.buffers_per_row <= 12, cost


@pytest.mark.parametrize("statement", ["lock_due_spans", "lock_open_spans"])
def test_spans_are_locked_by_their_jobs(connection: Connection, statement: str) -> None:
    values = {"jobs": _jobs(connection), "suspension": 1, "now": now()}
    cost = cost_of(connection, SQL[statement], values)
    assert cost.buffers / BATCH <= 12, cost
    assert "Seq Scan on beatkeeper_missed_span" not in cost.scans


def test_jobs_of_spans_are_read_by_key(connection: Connection) -> None:
    values = {"jobs": _jobs(connection), "versions": [1] * BATCH, "need_tags": True}
    values["counting"] = COUNTING_POLICIES
    cost = cost_of(connection, SQL["jobs_of_spans"], values)
    assert cost.rows == BATCH
    assert cost.buffers_per_row <= 25, cost


def test_whether_a_suspension_is_waited_for_is_known_by_two_indexes(connection: Connection) -> None:
    values = {"suspension": 2, "slices": 64, "over_at": now().replace(year=2020)}
    cost = cost_of(connection, SQL["suspension_is_waited_for"], values)
    assert cost.buffers <= 12 * 65, cost


def test_uncounted_spans_are_found_by_their_index(connection: Connection) -> None:
    cost = cost_of(connection, SQL["uncounted_spans"], {"slices": HELD, "most": 100})
    assert cost.rows == 100
    assert cost.buffers_per_row <= 12, cost


def test_open_spans_are_made_longer_by_key(connection: Connection) -> None:
    at = now()
    columns = {"suspension_id": 1, "version": 1, "begins_at": at, "ends_at": at, "cursor": at}
    values = {"job_id": _jobs(connection), **{name: [value] * BATCH for name, value in columns.items()}}
    cost = cost_of(connection, SQL["extend_open_spans"], values)
    assert cost.buffers / BATCH <= 12, cost
    assert "Seq Scan on beatkeeper_missed_span" not in cost.scans


def _jobs(connection: Connection) -> list[Any]:
    query = "SELECT job_id FROM beatkeeper_missed_span WHERE state = 'open' ORDER BY job_id LIMIT %s"
    return [row[0] for row in connection.execute(query, [BATCH])]
