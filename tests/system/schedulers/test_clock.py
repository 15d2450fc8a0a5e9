"""The database's clock is the only clock: a scheduler whose machine is hours off, or jumps, meets every time."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from runs.models import SchedulerNode
from tests.support.clock import NoCompiler, WrongClock
from tests.support.factories import make_pool, make_tenant, post_job
from tests.support.processes import Processes, RealProcess
from tests.support.waiting import wait_until
from tests.system.crashes.test_scheduler_killed import (
    database_now,
    hold_until,
    observer,
    wait_until_planned_past,
)
from tests.system.ledger_checker import check

__all__ = ["observer"]
HOUR = 3600
Start = Callable[[], RealProcess]


@pytest.fixture
def wall_clock(tmp_path: Path) -> WrongClock:
    try:
        return WrongClock(tmp_path)
    except NoCompiler as reason:
        pytest.skip(str(reason))


@pytest.fixture
def start(database_url: str, processes: Processes, wall_clock: WrongClock) -> Start:
    env = {
        "DJANGO_SETTINGS_MODULE": "scheduler_project.settings",
        "DATABASE_URL": database_url,
        "DATABASE_DIRECT_URL": database_url,
        "CELERY_BROKER_URL": "",
        "BEATKEEPER_LOG_LEVEL": "INFO",
        **wall_clock.env(),
    }
    return lambda: processes.python(
        "celery", "-A", "scheduler_project", "beat", "-l", "info", env=env, name="beat"
    )


def post_jobs(count: int) -> None:
    make_pool(slug="default")
    tenant = make_tenant()
    for number in range(count):
        every = {"every": 1} if number % 2 else {"cron": "*/2 * * * * *", "timezone": "UTC"}
        post_job(tenant, schedule=every, overlap="allow_all")


def skew_is_near(near: float) -> bool:
    skew = SchedulerNode.objects.values_list("skew_ms", flat=True).first()
    return skew is not None and abs(skew / 1000 - near) < 60


@pytest.mark.parametrize(
    "hours",
    [pytest.param(3, id="hours ahead"), pytest.param(-3, id="hours behind", marks=pytest.mark.chaos)],
)
def test_times_are_met_by_a_scheduler_whose_clock_is_wrong_and_jumps(
    observer: psycopg.Connection[Any], start: Start, wall_clock: WrongClock, hours: int
) -> None:
    wall_clock.set_ahead(hours * HOUR)
    beat = start()
    wait_until(lambda: skew_is_near(hours * HOUR), 40, f"the skew; it wrote:\n{beat.text()[-2000:]}")
    words = f"{abs(hours)}.0 h {'ahead of' if hours > 0 else 'behind'} the database's"
    beat.wait_for_output(f"this machine's clock is {words}")
    post_jobs(10)
    first_half = database_now(observer) + timedelta(seconds=4)
    hold_until(observer, first_half, 10)
    wall_clock.set_ahead(-hours * HOUR)
    wait_until(lambda: skew_is_near(-hours * HOUR), 20, "the jump to be told")
    end = database_now(observer) + timedelta(seconds=3)
    hold_until(observer, end, 10)
    wait_until_planned_past(observer, end, 10)

    verdict = check(observer, end)
    assert verdict.ok, verdict
    assert verdict.expected > 50
    assert verdict.latest_ms < 1500, verdict
    assert beat.is_alive() and "Traceback" not in beat.text()
