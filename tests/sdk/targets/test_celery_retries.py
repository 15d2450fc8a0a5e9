"""Retries of real Celery tasks in a real worker: what a task asks for, what its job allows, and lost children."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes
from tests.support.waiting import wait_until

AT_ONCE = {"max_attempts": 4, "backoff": "immediate", "base": 1.0, "cap": 1.0}


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    stage = CeleryStage(processes, tmp_path, broker_url)
    yield stage
    processes.stop_all()
    stage.close()


def ends(stage: CeleryStage, run: Any, number: int) -> list[dict[str, Any]]:
    """Fetch the delayed run, which the fake ledger puts back at once, by a wake-up."""

    def all_there() -> bool:
        if stage.ledger.run(run)["state"] == "queued":
            stage.wakeup()
        return len(stage.ledger.ends(run)) >= number

    wait_until(all_there, 30, f"{number} ends of the run")
    return stage.ledger.ends(run)


def test_a_task_retries_as_often_as_its_job_allows(stage: CeleryStage) -> None:
    stage.worker(1)
    steps = stage.add_run_with_wakeup("tests.steps", 1, retry=AT_ONCE)
    first, second, last = ends(stage, steps, 3)
    assert [end["next"] for end in (first, second, last)] == ["delayed", "delayed", "succeeded"]
    assert (last["result"], first["retry_after"]) == (3, 0.0)
    assert stage.ledger.run(steps)["target"]["args"] == [1], "what the job says stays"

    auto = stage.add_run_with_wakeup("tests.autoretries", retry={**AT_ONCE, "max_attempts": 2})
    requested, gave_up = ends(stage, auto, 2)
    assert (requested["retry_after"], gave_up["retry_after"]) == (3.0, None)
    assert [end["next"] for end in (requested, gave_up)] == ["delayed", "dead"]

    known = {**AT_ONCE, "permanent": ["LookupError"]}
    (refused,) = ends(stage, stage.add_run_with_wakeup("tests.autoretries", retry=known), 1)
    assert (refused["error_class"], refused["error_type"], refused["next"]) == (
        "permanent",
        "KeyError",
        "dead",
    )


def test_a_child_that_is_lost_uses_up_losses_and_no_attempt(stage: CeleryStage) -> None:
    stage.worker(1)
    run = stage.add_run_with_wakeup("tests.dies", retry={**AT_ONCE, "max_attempts": 1, "max_losses": 3})
    found = ends(stage, run, 3)
    assert [end["next"] for end in found] == ["delayed", "delayed", "dead"]
    assert {end["error_class"] for end in found} == {"worker_lost"}
