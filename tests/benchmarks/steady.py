"""Runs of ours at a steady rate: planned, waited for, and counted."""

import time
from datetime import datetime
from typing import Any

from tests.benchmarks import stored
from tests.benchmarks.stage import Database
from tests.support.waiting import wait_until


def plan(database: Database, rate: int, seconds: float, **spread: Any) -> tuple[datetime, int]:
    """Choose as many jobs of each tenant, and return when the first is due and how many there are."""
    count = int(rate * seconds)
    stored.choose(database.session, count)
    return stored.spread(database.session, rate, **spread), count


def sleep_until(database: Database, begin: datetime, seconds: float) -> None:
    now = stored.database_now(database.session).timestamp()
    time.sleep(max(0.0, begin.timestamp() + seconds - now))


def wait_for_end(database: Database, count: int) -> None:
    """Wait until nothing of one rate is left: the next one begins with nothing."""
    wait_until(
        lambda: not database.value("SELECT EXISTS (SELECT FROM beatkeeper_live_run)"),
        60 + count / 20,
        "the end of all runs",
        interval=0.2,
    )


def check(database: Database, begin: datetime, count: int) -> None:
    runs, jobs = database.rows(
        "SELECT count(*), count(DISTINCT job_id) FROM beatkeeper_run WHERE planned_at >= %s", [begin]
    )[0]
    assert (runs, jobs) == (count, count), f"{runs} runs of {jobs} jobs, {count} wanted"
