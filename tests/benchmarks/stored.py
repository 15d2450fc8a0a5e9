"""A database as a large installation has it: loaded in bulk, indexes after, nothing about it different from ours.

Every stored job runs each ten minutes at a millisecond of its own, so a million of them are 100,000 runs a minute.
Their clocks are set far ahead; a benchmark brings those forward that it wants due.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg

Session = psycopg.Connection[Any]

TENANTS = 100
PERIOD_SECONDS = 600
TASK = "bench.noop"
# The tenant that has half of all runs in a spike owns so much of all stored jobs.
LARGE_TENANT = 1
# A guess; where it was too high, the next one is better.
PREPARED_A_SECOND = 2_500
LOADED = ("beatkeeper_job", "beatkeeper_job_version", "beatkeeper_job_clock")

NAMED = {"tenants": TENANTS, "task": TASK, "period": PERIOD_SECONDS, "large_tenant": LARGE_TENANT}

DEFINITIONS = """
INSERT INTO beatkeeper_tenant (id, slug, name, weight, allowed_hosts)
    SELECT i, 'tenant-' || i, 'Tenant ' || i, CASE WHEN %(alike)s THEN 1 ELSE 1 + i %% 10 END, '{}'
    FROM generate_series(1, %(tenants)s) i;
INSERT INTO beatkeeper_pool (id, slug, description, exported_tasks, exported_kinds, shared)
    VALUES (1, 'default', '', ARRAY[%(task)s], '{}', true)
"""
# Columns a migration adds have defaults in the database: they need no mention here.
JOBS = """
INSERT INTO beatkeeper_job
        (id, tenant_id, name, description, pool_id, status, status_reason, status_by, priority, tags, version)
    SELECT gen_random_uuid(), CASE WHEN %(alike)s THEN 1 + i %% %(tenants)s WHEN i %% 10 = 0 THEN %(large_tenant)s
               ELSE 2 + i %% (%(tenants)s - 1) END,
           'job-' || i, '', 1, 'active', '', '', i %% 1001, '{}', 1
    FROM generate_series(1, %(jobs)s) i;
INSERT INTO beatkeeper_job_version (job_id, version, target, target_key, schedule, timeout_ms, overlap, catch_up,
        retry, anchor_at, created_by)
    SELECT id, 1, jsonb_build_object('kind', 'celery', 'task', %(task)s, 'args', '[]'::jsonb,
               'kwargs', jsonb_build_object(
                   'seconds', round((0.001 + random() * 4.999)::numeric, 3),
                   'payload', repeat(md5(id::text), 32))),
           %(task)s, jsonb_build_object('every', %(period)s), 3600000, 'skip', '{"policy": "last", "window": 86400.0}',
           '{"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 3600.0}',
           date_trunc('milliseconds', now() - make_interval(secs => random() * %(period)s)), ''
    FROM beatkeeper_job;
INSERT INTO beatkeeper_job_clock (job_id, slice, next_run_at, priority)
    SELECT id, get_byte(uuid_send(id), 15) & 63,
           date_trunc('milliseconds', now() + interval '2 days' + make_interval(secs => random() * 86400)), priority
    FROM beatkeeper_job
"""
# Of the large tenant so many, of the others the rest: as many of each as there are.
CHOSEN = """
CREATE TEMPORARY TABLE chosen AS
    WITH numbered AS (
        SELECT id AS job_id, tenant_id, row_number() OVER (PARTITION BY tenant_id ORDER BY id) AS number
        FROM beatkeeper_job
    )
    (SELECT * FROM numbered WHERE %(large)s > 0 AND tenant_id = %(large_tenant)s AND number <= %(large)s)
    UNION ALL
    (SELECT * FROM numbered WHERE %(large)s = 0 OR tenant_id <> %(large_tenant)s
     ORDER BY number, tenant_id LIMIT %(count)s - %(large)s);
ALTER TABLE chosen ADD PRIMARY KEY (job_id);
ANALYZE chosen
"""


def fill(session: Session, jobs: int, tenants: int = TENANTS, alike: bool = False) -> None:
    """Store jobs; tenants that are alike have the same weight and as many jobs each."""
    values = {"jobs": jobs, "tenants": tenants, "alike": alike}
    session.execute("SET synchronous_commit = off")
    for statement in DEFINITIONS.split(";\n"):
        fill_in(session, statement, values)
    with without_indexes(session):
        for statement in JOBS.split(";\n"):
            fill_in(session, statement, values)
    session.execute("RESET synchronous_commit")
    session.execute("VACUUM ANALYZE")
    session.execute("CHECKPOINT")


def fill_in(session: Session, statement: str, values: Mapping[str, Any] | None = None) -> None:
    """On the client's side: PostgreSQL takes no parameters where it cannot tell their type."""
    with psycopg.ClientCursor(session) as cursor:
        cursor.execute(statement, {**NAMED, **(values or {})})


@contextmanager
def without_indexes(session: Session) -> Iterator[None]:
    """Build what constrains nothing once the rows are there, as a restored dump does; keys stay."""
    found = session.execute(
        "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index"
        " WHERE indrelid = ANY (%s::regclass[])"
        " AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)",
        [list(LOADED)],
    ).fetchall()
    for name, _ in found:
        session.execute(f"DROP INDEX {name}")
    # Whether the references hold need not be asked row by row of what one statement made from the other.
    session.execute("SET session_replication_role = replica")
    yield
    session.execute("RESET session_replication_role")
    for _, definition in found:
        session.execute(definition)


def put_off(session: Session) -> None:
    """No job is due, and nothing has run: as it was when it was filled."""
    session.execute(
        "UPDATE beatkeeper_job_clock SET next_run_at = date_trunc('milliseconds',"
        " now() + interval '2 days' + make_interval(secs => random() * 86400))"
        " WHERE next_run_at < now() + interval '1 day'"
    )
    session.execute(
        "TRUNCATE beatkeeper_live_run, beatkeeper_run, beatkeeper_attempt, beatkeeper_missed_span, beatkeeper_queue,"
        " beatkeeper_worker_node"
    )


def choose(session: Session, count: int, large: int = 0) -> None:
    """Write `chosen` (job_id, tenant_id, number in its tenant): so many, shared evenly but for the large tenant."""
    session.execute("DROP TABLE IF EXISTS chosen")
    for statement in CHOSEN.split(";\n"):
        fill_in(session, statement, {"count": count, "large": large})
    (found,) = session.execute("SELECT count(*) FROM chosen").fetchall()[0]
    assert found == count, f"{count} jobs are wanted, {found} of them are stored: set STORED higher"


# Zones whose offsets are whole hours: the same minute and second everywhere.
ZONES = ["UTC", "America/New_York", "Europe/Berlin", "Asia/Tokyo", "Africa/Lagos"]


def make_due(session: Session, extra: str = "") -> datetime:
    """Plan the chosen jobs on one second to come, each hour by a cron expression in their tenant's zone.

    `extra` is a statement for what else a benchmark wants of them. Returns the second.
    """
    ahead = 3.0 + _chosen(session) / PREPARED_A_SECOND
    while True:
        at = (database_now(session) + timedelta(seconds=ahead)).replace(microsecond=0)
        _write_schedules(session, at)
        if extra:
            session.execute(extra)
        settle(session)
        if _set_clocks(session, "SELECT job_id, %(begin)s::timestamptz AS at FROM chosen", at):
            return at
        ahead *= 2


def _set_clocks(session: Session, planned: str, begin: datetime) -> bool:
    """Whether that was done before the first of them is due; otherwise none is changed."""
    with session.transaction() as attempt:
        fill_in(
            session,
            f"UPDATE beatkeeper_job_clock clock SET next_run_at = planned.at FROM ({planned}) planned"  # noqa: S608
            " WHERE planned.job_id = clock.job_id",
            {"begin": begin},
        )
        if database_now(session) > begin - timedelta(seconds=1):
            raise psycopg.Rollback(attempt)
        session.execute("ANALYZE beatkeeper_job_clock")
        return True
    return False


def _chosen(session: Session) -> int:
    return int(session.execute("SELECT count(*) FROM chosen").fetchall()[0][0])


def _write_schedules(session: Session, at: datetime) -> None:
    """Disable the guard of versions: there is no other way to plan so many at once."""
    session.execute("ALTER TABLE beatkeeper_job_version DISABLE TRIGGER USER")
    session.execute(
        "UPDATE beatkeeper_job_version version SET schedule = jsonb_build_object("
        " 'cron', %s::text, 'timezone', (%s::text[])[1 + chosen.tenant_id %% %s])"
        " FROM chosen WHERE chosen.job_id = version.job_id",
        [f"{at.second} {at.minute} * * * *", ZONES, len(ZONES)],
    )
    session.execute("ALTER TABLE beatkeeper_job_version ENABLE TRIGGER USER")


def settle(session: Session) -> None:
    """Write out what was prepared, so that it does not burden what is measured."""
    session.execute(
        "VACUUM ANALYZE beatkeeper_job, beatkeeper_job_version, beatkeeper_job_clock,"
        " beatkeeper_live_run, beatkeeper_queue, beatkeeper_worker_node"
    )
    session.execute("CHECKPOINT")


def database_now(session: Session) -> datetime:
    now: datetime = session.execute("SELECT clock_timestamp()").fetchall()[0][0]
    return now


def register_idle_workers(session: Session, slots: int, workers: int = 10) -> None:
    """They claim nothing and their lease does not end: what is handed over lies there to be counted."""
    session.execute(
        "INSERT INTO beatkeeper_worker_node"
        " (incarnation, name, pool_id, host, pid, slots, known_targets, state, held, lease_seconds)"
        " SELECT gen_random_uuid(), 'idle-' || i, 1, 'host', i, %s, ARRAY[%s], 'active', '{}', 86400"
        " FROM generate_series(1, %s) i",
        [slots // workers + 1, TASK, workers],
    )


def broker_queues(session: Session) -> list[str]:
    return [
        broker_queue
        for (broker_queue,) in session.execute(
            "SELECT broker_queue FROM beatkeeper_queue UNION SELECT broker_queue FROM beatkeeper_pool"
        ).fetchall()
    ]


SPREAD = """
CREATE TEMPORARY TABLE planned AS
    SELECT job_id, %(begin)s::timestamptz
           + make_interval(secs => floor((row_number() OVER (ORDER BY job_id) - 1) / %(rate)s::float8 * 1000
                                         / %(grid)s) * %(grid)s / 1000) AS at
    FROM chosen;
ALTER TABLE planned ADD PRIMARY KEY (job_id);
ANALYZE planned;
ALTER TABLE beatkeeper_job_version DISABLE TRIGGER USER;
UPDATE beatkeeper_job_version version SET anchor_at = planned.at - make_interval(secs => %(period)s)
    FROM planned WHERE planned.job_id = version.job_id;
ALTER TABLE beatkeeper_job_version ENABLE TRIGGER USER;
UPDATE beatkeeper_job_clock SET next_run_at = next_run_at + interval '2 days'
    WHERE next_run_at < now() + interval '1 day'
"""


def spread(session: Session, rate: float, grid_ms: int = 1, ahead: float = 0.0) -> datetime:
    """Plan the chosen one after the other, so many a second, each at a time of its own schedule.

    `ahead` is how many seconds the preparation takes at most, where a better guess is known.
    """
    ahead = ahead or 3.0 + _chosen(session) / PREPARED_A_SECOND
    while True:
        begin = (database_now(session) + timedelta(seconds=ahead)).replace(microsecond=0)
        session.execute("DROP TABLE IF EXISTS planned")
        for statement in SPREAD.split(";\n"):
            fill_in(session, statement, {"begin": begin, "rate": rate, "grid": grid_ms})
        settle(session)
        if _set_clocks(session, "SELECT job_id, at FROM planned", begin):
            return begin
        ahead *= 2
