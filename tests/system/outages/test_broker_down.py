"""RabbitMQ holds no truth (promise 5): while it is away, times are met and runs happen, more slowly."""

from datetime import datetime, timedelta

import pytest

from jobs.models import Job
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.system.platform import Platform, Row, Worker

JOBS = 8
LATEST = timedelta(seconds=3)


@pytest.mark.parametrize(
    "seconds",
    [8, pytest.param(30, marks=pytest.mark.chaos), pytest.param(60, marks=pytest.mark.chaos)],
    ids=["short", "half a minute", "a minute"],
)
def test_runs_happen_on_time_while_rabbitmq_is_stopped(
    platform_with_own_broker: Platform, private_rabbitmq: PrivateRabbitMQ, seconds: int
) -> None:
    platform = platform_with_own_broker
    schedulers = [platform.scheduler(), platform.scheduler()]
    worker = platform.worker(slots=4)
    jobs = [platform.post(schedule={"every": 1}) for _ in range(JOBS)]
    platform.wait(lambda: by_wakeup(platform, worker), 30, "runs to start")

    private_rabbitmq.stop()
    stopped_at = now(platform)
    over = stopped_at + timedelta(seconds=seconds)
    platform.wait(
        lambda: all(planned_after(platform, job, over) for job in jobs),
        seconds + 15,
        "planned times to pass",
    )
    planned = [run for job in jobs for run in platform.runs(job) if stopped_at < run["planned_at"] <= over]
    assert len(planned) >= JOBS * (seconds - 1)
    assert max(run["created_at"] - run["planned_at"] for run in planned) < LATEST
    platform.wait(
        lambda: all(run["state"] for run in all_of(platform, planned)),
        20,
        "them to end without a broker",
    )
    assert not private_rabbitmq.is_alive()

    private_rabbitmq.start()
    back_at = now(platform).timestamp()
    platform.wait(lambda: by_wakeup(platform, worker, back_at), 30, "wake-ups to flow again")
    assert {run["state"] for run in all_of(platform, planned)} == {"succeeded"}
    platform.assert_each_ran_once(planned)
    platform.assert_each_planned_time_has_one_run(over)
    assert all(scheduler.is_alive() for scheduler in schedulers)


def by_wakeup(platform: Platform, worker: Worker, since: float = 0.0) -> bool:
    """Return whether runs came by wake-ups; those of a feed ran in children of its own."""
    pool = worker.children()
    return sum(seen.started_at > since and seen.pid in pool for seen in platform.witnessed()) >= 2 * JOBS


def now(platform: Platform) -> datetime:
    at: datetime = platform.rows("SELECT clock_timestamp() AS now")[0]["now"]
    return at


def planned_after(platform: Platform, job: Job, instant: datetime) -> list[Row]:
    query = "SELECT id FROM beatkeeper_run WHERE job_id = %s AND planned_at > %s LIMIT 1"
    return platform.rows(query, job.pk, instant)


def all_of(platform: Platform, runs: list[Row]) -> list[Row]:
    return platform.rows("SELECT * FROM beatkeeper_run WHERE id = ANY (%s)", [run["id"] for run in runs])
