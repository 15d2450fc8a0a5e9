"""PostgreSQL crashes under load: nothing acknowledged is lost, and no time is lost or doubled (promises 1-3)."""

import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from jobs.models import Job, JobClock
from jobs.services.definition import edit_job
from tests.support.servers.postgres import PrivatePostgres
from tests.system.platform import LEASE, MARGIN, RECOVERY, Platform, Row, is_dead, our_connection

JOBS = 10
SECOND = timedelta(seconds=1)


@pytest.mark.parametrize("crashes", [2, pytest.param(8, marks=pytest.mark.chaos)], ids=["short", "often"])
def test_schedulers_and_workers_survive_a_crash_of_postgresql(
    platform_with_own_database: Platform, private_postgres: PrivatePostgres, crashes: int
) -> None:
    platform = platform_with_own_database
    jobs = [platform.post(schedule={"every": 1}, seconds=0.3) for _ in range(JOBS)]
    first = {job.pk: clock(job) for job in jobs}
    everybody = [platform.scheduler(), platform.scheduler()]
    everybody += [platform.worker().process, platform.worker().process]
    for _ in range(crashes):
        platform.wait(lambda: under_load(platform), 30, "runs to be claimed")
        private_postgres.kill()
        private_postgres.start()
    platform.wait(lambda: under_load(platform), 30, "work to go on")

    with our_connection():
        last = {job.pk: edit_job(job, {"schedule": None}).updated_at for job in jobs}
    platform.wait(lambda: not unfinished(platform), 40, "all runs to end")
    for job in jobs:
        planned = Counter(run["planned_at"] for run in platform.runs(job))
        assert planned == Counter(seconds_between(first[job.pk], last[job.pk]))
        assert {(run["state"], run["attempts"]) for run in platform.runs(job)} == {("succeeded", 1)}
        platform.assert_each_ran_once(platform.runs(job))
    platform.assert_each_planned_time_has_one_run(min(last.values()))
    platform.assert_one_attempt_at_a_time()
    assert all(process.is_alive() for process in everybody)


def test_bodies_end_in_an_outage_longer_than_the_lease_and_are_tried_again_after_it(
    platform_with_own_database: Platform, private_postgres: PrivatePostgres, gate: Path
) -> None:
    """Promise 4 across an outage: when the database is back, no body of before it may still be at work."""
    platform = platform_with_own_database
    platform.scheduler()
    platform.worker(slots=1)
    platform.worker(slots=1)
    jobs = [platform.run_once(until=str(gate)) for _ in range(2)]
    platform.wait(lambda: len(platform.witnessed()) == 2, 30, "both runs to start")
    bodies = [seen.pid for seen in platform.witnessed()]

    private_postgres.stop()
    stopped_at = time.time()
    platform.wait(lambda: all(is_dead(pid) for pid in bodies), LEASE, "the fence")
    platform.wait(lambda: time.time() > stopped_at + LEASE + MARGIN, 2 * LEASE, "the lease to be over")
    assert len(platform.witnessed()) == 2
    private_postgres.start()

    platform.wait(lambda: len(platform.witnessed()) == 4, RECOVERY, "both runs to start again")
    gate.touch()
    for job in jobs:
        assert platform.outcomes(platform.run_of(job, "succeeded")) == ["lost", "succeeded"]
    platform.assert_one_attempt_at_a_time()


def clock(job: Job) -> datetime:
    with our_connection():
        at = JobClock.objects.get(job=job).next_run_at
    assert at is not None
    return at


def seconds_between(first: datetime, last: datetime) -> list[datetime]:
    return [first + number * SECOND for number in range((last - first) // SECOND + 1)]


def under_load(platform: Platform) -> bool:
    """Bodies run whose claims were made since the server's last start."""
    query = (
        "SELECT FROM beatkeeper_live_run WHERE state = 'running' AND claimed_at > pg_postmaster_start_time()"
    )
    return len(platform.rows(query)) > 0


def unfinished(platform: Platform) -> list[Row]:
    return platform.rows("SELECT id FROM beatkeeper_live_run")
