"""Attacks promises 2 and 3: a scheduler dies with its slices, and every planned time has exactly one run."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from jobs.models import Tenant
from runs.scheduler.partitions.lock_session import JOBS
from tests.support.factories import make_pool, make_tenant, post_job
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until
from tests.system.ledger_checker import Verdict, check

SLICES = 64
SCHEDULES: list[dict[str, Any]] = [
    {"every": 1},
    {"every": 1.5},
    {"cron": "*/2 * * * * *", "timezone": "UTC"},
    {"every": 2},
]
Connection = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture
def observer(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def schedulers(database_url: str, processes: Processes, observer: Connection) -> Iterator[list[RealProcess]]:
    env = {
        "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
        "DATABASE_URL": database_url,
        "DATABASE_DIRECT_URL": database_url,
        "CELERY_BROKER_URL": "",
    }
    started = [
        processes.python("celery", "-A", "scheduler_project", "beat", "-l", "info", env=env, name=name)
        for name in ("first", "second")
    ]
    for scheduler in started:
        wait_until(
            lambda one=scheduler: slices_of(observer, one) == SLICES // 2,  # type: ignore[misc]
            40,
            f"a fair share of slices; it wrote:\n{scheduler.text()[-3000:]}",
        )
    yield started
    processes.stop_all()


def slices_of(observer: Connection, scheduler: RealProcess) -> int:
    rows = observer.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE locktype = 'advisory' AND classid = %s AND granted AND application_name = %s",
        [JOBS, f"beatkeeper trigger {scheduler.pid}"],
    )
    return int(rows.fetchall()[0][0])


def post_jobs(tenant: Tenant, count: int) -> None:
    for number in range(count):
        post_job(tenant, schedule=SCHEDULES[number % len(SCHEDULES)], overlap="allow_all")


def database_now(observer: Connection) -> datetime:
    at: datetime = observer.execute("SELECT clock_timestamp()").fetchall()[0][0]
    return at


def wait_until_planned_past(observer: Connection, until: datetime, timeout: float) -> None:
    def all_clocks_are_past() -> bool:
        rows = observer.execute("SELECT min(next_run_at) > %s FROM beatkeeper_job_clock", [until])
        return bool(rows.fetchall()[0][0])

    wait_until(all_clocks_are_past, timeout, f"all clocks to be past {until}")


def hold_until(observer: Connection, until: datetime, timeout: float) -> None:
    wait_until(lambda: database_now(observer) > until, timeout, f"{until}", interval=0.2)


@contextmanager
def tampered(observer: Connection, statement: str) -> Iterator[None]:
    with observer.transaction(force_rollback=True):
        observer.execute(statement)
        yield


@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        pytest.param(200, 10, id="short"),
        pytest.param(1000, 60, id="long", marks=pytest.mark.chaos),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_each_planned_time_has_one_run_though_a_scheduler_dies(
    observer: Connection,
    schedulers: list[RealProcess],
    number: signal.Signals,
    jobs: int,
    seconds: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_pool(slug="default")
    post_jobs(make_tenant(), jobs)
    victim, survivor = schedulers
    half_way = database_now(observer) + timedelta(seconds=seconds / 2)
    hold_until(observer, half_way, seconds)
    assert slices_of(observer, victim) >= SLICES // 3

    victim.send(number)
    wait_until(lambda: slices_of(observer, survivor) == SLICES, 20, "the survivor to hold every slice")
    end = half_way + timedelta(seconds=max(seconds / 2, 6))
    hold_until(observer, end, seconds + 10)
    wait_until_planned_past(observer, end, 20)

    verdict = check(observer, end)
    assert verdict.ok, verdict
    assert verdict.expected > jobs * seconds / 3
    # What the victim held waited until its locks fell and another looked around.
    assert verdict.latest_ms < 6500, verdict
    with capsys.disabled():
        sys.stdout.write(f"\na scheduler gets {number.name}: {verdict}\n")
    assert_the_checker_sees_one_row_too_few_and_one_too_many(observer, end)


def assert_the_checker_sees_one_row_too_few_and_one_too_many(observer: Connection, end: datetime) -> None:
    """Tamper with the earliest row: the schedulers go on, and later ones lie behind what is checked."""
    with tampered(
        observer,
        "WITH gone AS (DELETE FROM beatkeeper_run WHERE id ="
        " (SELECT id FROM beatkeeper_run ORDER BY planned_at LIMIT 1) RETURNING id)"
        " DELETE FROM beatkeeper_live_run live USING gone WHERE live.id = gone.id",
    ):
        assert sees(check(observer, end)) == (1, 0)
    with tampered(
        observer,
        "WITH added AS (INSERT INTO beatkeeper_run (id, tenant_id, job_id, version, pool_id, trigger, planned_at,"
        " priority, state, reason, ended_from, finished_at)"
        " SELECT (left(id::text, 35) || '0')::uuid, tenant_id, job_id, 1, pool_id, 'schedule',"
        " planned_at + interval '1 ms', 500, 'skipped', 'overlap', '', now() FROM beatkeeper_run"
        " WHERE right(id::text, 1) <> '0' ORDER BY planned_at LIMIT 1 RETURNING id) SELECT id FROM added",
    ):
        assert sees(check(observer, end)) == (0, 1)


def sees(verdict: Verdict) -> tuple[int, int]:
    assert not verdict.ok
    return len(verdict.missing), len(verdict.unexpected)
