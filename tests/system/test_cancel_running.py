"""What runs can be stopped: by a person, by its time limit; and then it is gone, with everything it started."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_tasks import journal
from tests.system.platform import Platform, is_dead, running

STUBBORN = "trap '' TERM; "


@pytest.mark.parametrize("manners", ["", STUBBORN], ids=["polite", "stubborn"])
def test_a_cancelled_command_is_gone_with_all_it_started(platform: Platform, manners: str) -> None:
    platform.scheduler()
    platform.worker(app="scheduler_project")
    mark = f"30.{secrets.randbelow(10**9):09}"
    argv = ["sh", "-c", f"{manners}echo begins; sleep {mark} & sleep {mark}"]
    job = platform.run_once(target={"kind": "command", "argv": argv})
    body = platform.wait(lambda: all_three(mark), 30, "the command")
    platform.cancel(job)
    run = platform.run_of(job, "cancelled")
    assert all(is_dead(pid) for pid in body)
    assert (run["error_class"], run["reason"]) == ("cancelled", "cancelled: no longer wanted")
    assert platform.outcomes(run) == ["cancelled"]
    assert "begins" in platform.log_of(run)


def test_a_cancelled_task_that_takes_no_hint_is_killed_and_the_next_run_works(platform: Platform) -> None:
    platform.scheduler()
    platform.worker(slots=1)
    job = platform.run_once(task="tests.hangs")
    pid = platform.wait(lambda: noted(platform, "hangs"), 30, "the body")
    platform.cancel(job)
    run = platform.run_of(job, "cancelled")
    assert is_dead(pid)
    assert platform.outcomes(run) == ["cancelled"]
    platform.run_of(platform.run_once(), "succeeded")


def test_a_cancel_is_requested_acknowledged_and_done(platform: Platform) -> None:
    platform.scheduler()
    platform.worker(slots=1, BEATKEEPER_GRACE_SECONDS="6")
    job = platform.run_once(task="tests.hangs")
    pid = platform.wait(lambda: noted(platform, "hangs"), 30, "the body")
    platform.cancel(job)
    (live,) = platform.live(job)
    assert live["cancel_requested_at"] is not None and live["cancel_acknowledged_at"] is None

    def acknowledged() -> Any:
        return [row["cancel_acknowledged_at"] for row in platform.live(job)]

    platform.wait(lambda: any(acknowledged()), 5, "its worker to have heard of it")
    assert not is_dead(pid)
    platform.run_of(job, "cancelled")
    assert is_dead(pid)


def test_a_cancelled_run_is_not_tried_again_when_its_worker_dies(platform: Platform, gate: Path) -> None:
    """Failure and cancel is cancelled, whoever notices the failure."""
    platform.scheduler()
    worker = platform.worker(slots=1)
    job = platform.run_once(until=str(gate))
    platform.wait_for_attempt(1)
    worker.kill_whole()
    platform.cancel(job)
    run = platform.run_of(job, "cancelled")
    assert platform.outcomes(run) == ["cancelled"]
    platform.worker(slots=1)
    platform.run_of(platform.run_once(), "succeeded")
    assert len(platform.witnessed(run["id"])) == 1


@pytest.mark.parametrize("body", [{"seconds": 60}, {"task": "tests.hangs"}], ids=["polite", "stubborn"])
def test_a_run_ends_at_its_time_limit(platform: Platform, body: dict[str, Any]) -> None:
    platform.scheduler()
    platform.worker(slots=1)
    job = platform.run_once(timeout=1, retry={"max_attempts": 1}, **body)
    run = platform.run_of(job, "dead")
    assert run["error_class"] == "timeout"
    assert platform.outcomes(run) == ["timeout"]
    (attempt,) = platform.attempts(run)
    assert 1 <= (attempt["finished_at"] - attempt["started_at"]).total_seconds() < 20
    platform.run_of(platform.run_once(), "succeeded")


def all_three(mark: str) -> list[int] | None:
    """Return the shell and its two children, once they are there."""
    found = running(mark)
    return found if len(found) == 3 else None


def noted(platform: Platform, event: str) -> int | None:
    """Return the pid of the body that wrote this."""
    return next((line["pid"] for line in journal(platform.journal_path) if line["event"] == event), None)
