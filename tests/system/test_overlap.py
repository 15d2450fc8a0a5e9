"""A time comes while the run before still works, through real processes: who waits, who is asked, who is killed."""

import pytest

from tests.support.sample_tasks import journal
from tests.system.platform import Platform, Row, is_dead


def test_runs_that_wait_go_one_by_one_and_none_is_left_out(platform: Platform) -> None:
    platform.scheduler()
    platform.worker(slots=4)
    job = platform.post(schedule={"every": 1}, overlap="buffer_all", seconds=1.3)

    def three() -> bool:
        return len(platform.finished(job)) >= 3

    platform.wait(three, 40, "three runs")
    runs = platform.runs(job)
    assert [run["state"] for run in runs[:3]] == ["succeeded"] * 3
    planned = [run["planned_at"] for run in runs]
    assert {
        (after - before).total_seconds() for before, after in zip(planned, planned[1:], strict=False)
    } == {1.0}
    assert all(
        after["started_at"] >= before["finished_at"]
        for before, after in zip(runs[:2], runs[1:3], strict=True)
    )


@pytest.mark.parametrize("policy", ["cancel_other", "terminate_other"])
def test_the_run_before_ends_for_the_next_one(platform: Platform, policy: str) -> None:
    """The body takes no hint: cancelled it is killed after the grace, terminated it is never asked."""
    platform.scheduler()
    platform.worker(slots=2, BEATKEEPER_GRACE_SECONDS="0.5", BEATKEEPER_BEAT_SECONDS="0.5")
    job = platform.post(schedule={"every": 4}, overlap=policy, task="tests.hangs")

    def replaced() -> Row | None:
        begun = events(platform, "hangs")
        return begun[1] if len(begun) >= 2 else None

    platform.wait(replaced, 40, "the second run to begin")
    first = platform.finished(job)[0]
    assert (first["state"], first["error_class"]) == ("cancelled", "cancelled")
    assert first["reason"] == "overlap_superseded"
    assert platform.outcomes(first) == ["cancelled"]
    body = events(platform, "hangs")[0]
    assert is_dead(body["pid"])
    asked = [line for line in events(platform, "shrugged") if line["run"] == str(first["id"])]
    assert bool(asked) == (policy == "cancel_other")


def events(platform: Platform, event: str) -> list[Row]:
    return [line for line in journal(platform.journal_path) if line["event"] == event]
