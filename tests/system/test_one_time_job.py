"""One job travels the whole way, through real processes."""

from tests.system.platform import Platform


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
