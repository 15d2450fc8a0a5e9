"""A job travels the whole way through real processes: scheduler, broker, worker, log store, history."""

from datetime import datetime, timedelta, timezone

from tests.support.factories import make_tenant
from tests.system.platform import Platform

# Two cores, and other tests may be at work on them.
ON_TIME = timedelta(seconds=5)


def test_a_job_every_second_runs_and_keeps_what_it_printed(platform: Platform) -> None:
    platform.scheduler()
    platform.worker()
    job = platform.post(schedule={"every": 1})

    def succeeded() -> bool:
        return [run["state"] for run in platform.runs(job)].count("succeeded") >= 3

    platform.wait(succeeded, 40, "three runs")
    run = platform.runs(job)[0]
    assert "attempt 1" in platform.log_of(run)
    assert platform.outcomes(run) == ["succeeded"]


def test_a_one_time_job_two_seconds_ahead_runs_once_and_on_time(platform: Platform) -> None:
    for scheduler in (platform.scheduler(), platform.scheduler()):
        scheduler.wait_for_output("trigger is at work")
    platform.worker()
    platform.wait(lambda: platform.consumers(), 20, "the worker to listen to its pool's queue")
    at = datetime.now(timezone.utc) + timedelta(seconds=2)
    job = platform.post(schedule={"at": at.isoformat()})
    run = platform.run_of(job, "succeeded")
    (witness,) = platform.witnessed(run["id"])
    assert timedelta(0) <= datetime.fromtimestamp(witness.started_at, timezone.utc) - at < ON_TIME

    # Its time is behind it: a job that comes after it, and is done, shows that nothing more comes.
    platform.run_of(platform.run_once(), "succeeded")
    assert len(platform.runs(job)) == 1
    assert len(platform.witnessed(run["id"])) == 1
    (status,) = platform.rows("SELECT status FROM beatkeeper_job WHERE id = %s", job.pk)
    assert status["status"] == "finished"


def test_a_failing_job_is_tried_as_often_as_it_says_and_ends_dead(platform: Platform) -> None:
    platform.scheduler()
    platform.worker()
    retry = {"max_attempts": 3, "backoff": "exponential", "base": 0.1, "cap": 0.5}
    job = platform.run_once(raising=True, retry=retry)
    run = platform.run_of(job, "dead")
    assert platform.outcomes(run) == ["failed"] * 3
    assert [seen.attempt for seen in platform.witnessed(run["id"])] == [1, 2, 3]
    assert (run["error_type"], run["error_line"]) == ("ValueError", "as asked")
    assert "as asked" in platform.log_of(run)


def test_the_first_run_of_a_new_tenant_comes_by_wakeup(platform: Platform) -> None:
    platform.scheduler()
    worker = platform.worker(BEATKEEPER_FEED_AFTER_SECONDS="30")
    platform.wait(lambda: platform.consumers(), 20, "the worker to listen to its pool's queue")
    newcomer = make_tenant()
    run = platform.run_of(platform.run_once(newcomer), "succeeded")
    (witness,) = platform.witnessed(run["id"])
    assert witness.pid in worker.children()
