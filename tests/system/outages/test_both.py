"""PostgreSQL and RabbitMQ gone at once, under load: nobody exits, nothing is lost or doubled, all catch up at once."""

import time
from datetime import datetime

import pytest

from tests.support.servers.postgres import PrivatePostgres
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.system.platform import LEASE, RECOVERY, Platform, Worker, is_dead

JOBS = 8
# A new lock session, the slices, and one visit to each clock.
ALL_CAUGHT_UP = 10


@pytest.mark.parametrize(
    "seconds", [3, pytest.param(30, marks=pytest.mark.chaos)], ids=["short", "half a minute"]
)
def test_nothing_is_lost_or_doubled_while_both_servers_are_away(
    platform_with_own_servers: Platform,
    private_postgres: PrivatePostgres,
    private_rabbitmq: PrivateRabbitMQ,
    seconds: int,
) -> None:
    """In the long form longer than the lease: bodies are ended, and tried again."""
    platform = platform_with_own_servers
    schedulers = [platform.scheduler(), platform.scheduler()]
    workers = [platform.worker(slots=3), platform.worker(slots=3)]
    for _ in range(JOBS):
        platform.post(schedule={"every": 1}, seconds=0.1)
    platform.wait(lambda: ended(platform) > 2 * JOBS, 60, "load")

    private_rabbitmq.stop()
    private_postgres.stop()
    stopped_at = time.time()
    platform.wait(lambda: time.time() > stopped_at + seconds, seconds + 10, "the outage to be over")
    private_postgres.start()
    private_rabbitmq.start()

    back_at = now(platform)
    platform.wait(lambda: triggered(platform, back_at), ALL_CAUGHT_UP, "all missed times to have their runs")
    platform.wait(lambda: not unfinished(platform, back_at), RECOVERY + LEASE, "all of them to end")
    platform.assert_each_planned_time_has_one_run(back_at)
    assert platform.rows("SELECT DISTINCT state FROM beatkeeper_run WHERE state IS NOT NULL") == [
        {"state": "succeeded"}
    ]
    platform.assert_one_attempt_at_a_time()
    platform.wait(lambda: by_wakeup(platform, workers), 40, "wake-ups to flow again")
    assert all(scheduler.is_alive() for scheduler in schedulers)
    assert all(worker.process.is_alive() and not is_dead(worker.guard) for worker in workers)


def ended(platform: Platform) -> int:
    return int(platform.rows("SELECT count(*) FROM beatkeeper_run WHERE state IS NOT NULL")[0]["count"])


def triggered(platform: Platform, until: datetime) -> bool:
    query = "SELECT min(next_run_at) > %s AS past FROM beatkeeper_job_clock"
    return bool(platform.rows(query, until)[0]["past"])


def unfinished(platform: Platform, until: datetime) -> int:
    query = "SELECT count(*) FROM beatkeeper_live_run WHERE planned_at <= %s"
    return int(platform.rows(query, until)[0]["count"])


def by_wakeup(platform: Platform, workers: list[Worker]) -> bool:
    """Return whether runs came by wake-ups; those of a feed ran in children of its own."""
    since = time.time() - 5
    pools = {pid for worker in workers for pid in worker.children()}
    return sum(seen.started_at > since and seen.pid in pools for seen in platform.witnessed()) > JOBS


def now(platform: Platform) -> datetime:
    at: datetime = platform.rows("SELECT clock_timestamp() AS now")[0]["now"]
    return at
