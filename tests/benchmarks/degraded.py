"""How much workers do while RabbitMQ is down, beside what they do while it is there, and how soon it is as before.

SUPPLY jobs of 10 ms run every second, more than the workers' slots have time for, so that they always have work. The
broker is one of our own: it is stopped for DOWN_SECONDS in mid-run. Rates are counted from the attempts' own rows
afterwards.
"""

import time
from contextlib import ExitStack
from datetime import datetime
from statistics import median
from typing import Any

from tests.benchmarks import stored
from tests.benchmarks.sizes import number, whole
from tests.benchmarks.stage import Database, Stage, check_alive, say
from tests.support.processes import RealProcess
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

KEYS = (
    "degraded_ratio",
    "normal_per_second",
    "degraded_per_second",
    "normal_again_seconds",
    "doubled",
    "lost",
)
TENANTS = 10
TASK = "bench.rests"
# As before: a second of so much of the rate before the outage.
NORMAL_AGAIN = 0.8
DEFINITIONS = """
INSERT INTO beatkeeper_tenant (slug, name, weight, allowed_hosts)
    SELECT 'tenant-' || i, 'Tenant ' || i, 1, '{}' FROM generate_series(1, %(tenants)s) i;
INSERT INTO beatkeeper_pool (slug, description, exported_tasks, exported_kinds, shared)
    VALUES ('default', '', ARRAY[%(task)s], '{}', true)
"""
JOBS = """
INSERT INTO beatkeeper_job
        (id, tenant_id, name, description, pool_id, status, status_reason, status_by, priority, tags, version)
    SELECT gen_random_uuid(), (SELECT id FROM beatkeeper_tenant WHERE slug = 'tenant-' || 1 + i %% %(tenants)s),
           'job-' || i, '', (SELECT id FROM beatkeeper_pool), 'active', '', '', 500, '{}', 1
    FROM generate_series(1, %(jobs)s) i;
INSERT INTO beatkeeper_job_version (job_id, version, target, target_key, schedule, timeout_ms, overlap, catch_up,
        retry, anchor_at, created_by)
    SELECT id, 1, jsonb_build_object('kind', 'celery', 'task', %(task)s, 'args', '[]'::jsonb, 'kwargs', '{}'::jsonb),
           %(task)s, '{"every": 1}', 60000, 'allow_all', '{"policy": "all", "window": 86400.0}',
           '{"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 3600.0}',
           date_trunc('milliseconds', now() + make_interval(secs => random())), ''
    FROM beatkeeper_job;
INSERT INTO beatkeeper_job_clock (job_id, slice, next_run_at)
    SELECT job_id, get_byte(uuid_send(job_id), 15) & 63, anchor_at + interval '1 s' FROM beatkeeper_job_version
"""


def measure(stage: Stage) -> dict[str, Any]:
    supply = whole("SUPPLY", 3_000)
    normal, down, after = number("NORMAL_SECONDS", 30.0, 2.0), number("DOWN_SECONDS", 300.0, 2.0), 30.0
    database = Database(stage.migrated("degraded"), supply)
    with ExitStack() as ending:
        ending.callback(database.session.close)
        broker = ending.enter_context(PrivateRabbitMQ())
        broker.use_fresh_vhost()
        running = _start(stage, database, broker)
        began = _run(database, normal)
        say(f"RabbitMQ is stopped for {down:g} s ...")
        broker.stop()
        stopped = _run(database, down)
        broker.start()
        returned = _run(database, number("AFTER_SECONDS", after, 2.0))
        check_alive(*running)
        _plan_nothing_more(database)
        figures = _judge(database, began, stopped, returned)
        stage.processes.stop_all()
    say(
        f"{figures['normal_per_second']} runs a second with RabbitMQ, {figures['degraded_per_second']} without it"
        f" ({figures['degraded_ratio']} of that)"
    )
    return {**figures, "supply_per_second": supply, "down_seconds": down}


def _start(stage: Stage, database: Database, broker: PrivateRabbitMQ) -> list[RealProcess]:
    env = {"CELERY_BROKER_URL": broker.url, "SAMPLE_BROKER_URL": broker.url}
    for statements in (DEFINITIONS, JOBS):
        for statement in statements.split(";\n"):
            with database.session.transaction():
                stored.fill_in(
                    database.session,
                    statement,
                    {"tenants": TENANTS, "task": TASK, "jobs": database.jobs},
                )
    stored.settle(database.session)
    running = [stage.scheduler(database, **env)]
    running += [stage.worker(database.url, **env) for _ in range(whole("WORKERS", 1))]
    wait_until(
        lambda: database.value("SELECT count(*) > 0 FROM beatkeeper_attempt"), 120, "the first runs to end"
    )
    wait_until(lambda: _backlog(database) > database.jobs, 120, "a backlog")
    return running


def _run(database: Database, seconds: float) -> datetime:
    """Stop the broker and return when this began."""
    began = stored.database_now(database.session)
    time.sleep(seconds)
    assert _backlog(database) > 0, "the workers ran out of work: set SUPPLY higher"
    return began


def _backlog(database: Database) -> int:
    return int(database.value("SELECT count(*) FROM beatkeeper_live_run WHERE state = 'ready'"))


def _plan_nothing_more(database: Database) -> None:
    """And let what has begun come to its end; what waits need not."""
    database.session.execute("UPDATE beatkeeper_job_clock SET next_run_at = NULL")
    # Else the backlog, which takes longer than the measurement did, would go on.
    database.session.execute("UPDATE beatkeeper_job SET status = 'paused'")
    wait_until(
        lambda: (
            not database.value(
                "SELECT count(*) FROM beatkeeper_live_run WHERE state IN ('queued', 'running')"
            )
        ),
        120,
        "what has begun to end",
    )


def _judge(database: Database, began: datetime, stopped: datetime, returned: datetime) -> dict[str, Any]:
    per_second = {
        int(second): int(count)
        for second, count in database.rows(
            "SELECT floor(extract(epoch FROM finished_at - %s)), count(*) FROM beatkeeper_attempt GROUP BY 1",
            [began],
        )
    }
    down_from, down_to = ((at - began).total_seconds() for at in (stopped, returned))
    normal = median(per_second.get(second, 0) for second in range(int(down_from)))
    without = [per_second.get(second, 0) for second in range(int(down_from) + 1, int(down_to))]
    degraded = sum(without) / max(1, len(without))
    again = [
        second - down_to
        for second in sorted(per_second)
        if second >= down_to and per_second[second] >= NORMAL_AGAIN * normal
    ]
    doubled, lost = database.rows(
        "SELECT (SELECT count(*) FROM (SELECT FROM beatkeeper_attempt WHERE outcome <> 'given_back'"
        "  GROUP BY run_id HAVING count(*) > 1) twice),"
        " (SELECT count(*) FROM beatkeeper_run run WHERE (run.state IS NULL) <>"
        "  EXISTS (SELECT FROM beatkeeper_live_run live WHERE live.id = run.id))"
    )[0]
    if not again:
        say("NOTE: no second after the outage was as fast as those before it")
    return {
        "degraded_ratio": round(degraded / normal, 3),
        "normal_per_second": round(normal),
        "degraded_per_second": round(degraded),
        "normal_again_seconds": round(max(0.0, again[0]), 1) if again else None,
        "doubled": doubled,
        "lost": lost,
    }
