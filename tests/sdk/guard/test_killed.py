"""Real signals to real processes: no body runs on when its claim is over, and every end is reported."""

import time
from datetime import datetime

import pytest

from scheduler_project.sdk.process.processes import descendants
from tests.sdk.stage import LEASE, MARGIN, Stage, cpu_share, gone, kill, stop, wake
from tests.support.waiting import wait_until


def test_a_dead_child_is_reported_within_a_second_with_its_log(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.dies", retry={"max_attempts": 1})
    died = stage.wait_for_event("dies", run)["at"]
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("dead", "worker_lost")
    assert datetime.fromisoformat(end["finished_at"]).timestamp() - died < 1
    assert "last words" in stage.log_of(end)


def test_a_dead_child_is_replaced(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.dies", retry={"max_attempts": 1})
    stage.wait_for_end(run)
    assert stage.wait_for_end(stage.ledger.add_run("tests.succeeds"))["next"] == "succeeded"


def test_the_time_limit_requests_a_stop_first(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60, timeout=0.5, retry={"max_attempts": 1})
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("dead", "timeout")
    assert "time limit of 0.5 s" in end["error_line"]
    body = stage.events("sleeps", run)[0]["pid"]
    assert not gone(body), "asking was enough, so its process lives on"


def test_a_body_that_takes_no_hint_is_killed(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.hangs", timeout=0.5, retry={"max_attempts": 1})
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("dead", "timeout")
    assert stage.events("shrugged", run)
    wait_until(lambda: gone(stage.events("hangs", run)[0]["pid"]), 15, "its end")


def test_a_body_in_its_own_group_is_stopped_there(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("", kind="sleeping_group", timeout=0.5, retry={"max_attempts": 1})
    body = stage.wait_for_event("group", run)
    end = stage.wait_for_end(run)
    assert end["error_class"] == "timeout"
    assert gone(body["body"])
    assert not gone(body["pid"])


def test_a_cancelled_run_stops(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60)
    stage.wait_for_event("sleeps", run)
    stage.ledger.change_run(run, cancel=True)
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("cancelled", "cancelled")
    assert not stage.events("slept", run)


def test_a_terminated_run_gets_no_hint(stage: Stage) -> None:
    stage.feed(BEATKEEPER_GRACE_SECONDS="30")
    run = stage.ledger.add_run("tests.hangs")
    body = stage.wait_for_event("hangs", run)["pid"]
    stage.ledger.change_run(run, cancel=True, terminate=True)
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("cancelled", "cancelled")
    assert not stage.events("shrugged", run)
    assert gone(body)
    assert stage.wait_for_end(stage.ledger.add_run("tests.succeeds"))["next"] == "succeeded"


def test_a_run_that_was_asked_to_stop_can_still_be_terminated(stage: Stage) -> None:
    stage.feed(BEATKEEPER_GRACE_SECONDS="30")
    run = stage.ledger.add_run("tests.hangs")
    stage.wait_for_event("hangs", run)
    stage.ledger.change_run(run, cancel=True)
    stage.wait_for_event("shrugged", run)
    wait_until(lambda: stage.ledger.run(run).get("acknowledged"), 15, "an acknowledged cancel")
    stage.ledger.change_run(run, terminate=True)
    assert stage.wait_for_end(run)["next"] == "cancelled"


def test_a_terminated_group_is_killed_and_its_process_reports(stage: Stage) -> None:
    stage.feed(BEATKEEPER_GRACE_SECONDS="30")
    run = stage.ledger.add_run("", kind="sleeping_group")
    body = stage.wait_for_event("group", run)
    stage.ledger.change_run(run, cancel=True, terminate=True)
    end = stage.wait_for_end(run)
    assert (end["next"], end["error_class"]) == ("cancelled", "cancelled")
    assert gone(body["body"]) and not gone(body["pid"])


def test_a_cancelled_body_that_takes_no_hint_is_killed(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.hangs")
    body = stage.wait_for_event("hangs", run)["pid"]
    stage.ledger.change_run(run, cancel=True)
    assert stage.wait_for_end(run)["next"] == "cancelled"
    assert gone(body)


def test_what_a_killed_body_started_dies_with_it(stage: Stage) -> None:
    """Promise 4: it would go on beside the next attempt."""
    stage.feed()
    run = stage.ledger.add_run("tests.starts_another", timeout=1, retry={"max_attempts": 1})
    started = stage.wait_for_event("starts_another", run)
    family = wait_until(
        lambda: found if len(found := descendants(started["helper"])) == 1 else [], 10, "the grandchild"
    )
    stage.wait_for_end(run)
    left = [pid for pid, _ in [*family, (started["helper"], 0)] if not gone(pid)]
    assert left == []


@pytest.mark.parametrize("task", ["tests.sleeps", "tests.hangs"])
def test_without_the_ledger_a_body_ends_before_its_lease(stage: Stage, task: str) -> None:
    stage.feed()
    run = stage.ledger.add_run(task)
    body = stage.wait_for_event(task.partition(".")[2], run)["pid"]
    stage.ledger.away.touch()
    cut_off = time.monotonic()
    wait_until(lambda: gone(body), LEASE, "the end of the body")
    assert time.monotonic() - cut_off < LEASE - MARGIN / 2
    stage.ledger.away.unlink()
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    stage.wait_for_event(task.partition(".")[2], run, count=2)


def test_a_short_silence_of_the_ledger_costs_nothing(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 1.0)
    stage.wait_for_event("sleeps", run)
    stage.ledger.away.touch()
    stage.wait_for_event("slept", run)
    [folder] = stage.spool.glob("worker-*")
    wait_until(lambda: list((folder / "spool").glob("*.json")), 10, "a spooled result", interval=0.01)
    stage.ledger.away.unlink()
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert len(stage.ledger.ends(run)) == 1


def test_an_expired_worker_stops_and_registers_anew(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    stage.ledger.lose_workers()
    wait_until(lambda: gone(body), 15, "the end of the body")
    again = stage.wait_for_event("sleeps", run, count=2)
    assert again["pid"] != body
    assert len(stage.ledger.workers()) == 2
    assert stage.ledger.ends(run) == []


def test_a_claim_that_is_no_longer_ours_is_killed(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    stage.ledger.change_run(run, state="dead", token=None, worker=None)
    wait_until(lambda: gone(body), 15, "the end of the body")
    assert stage.ledger.ends(run) == []


def test_a_killed_worker_leaves_no_body_and_reports(stage: Stage) -> None:
    worker = stage.feed()
    run = stage.ledger.add_run("", kind="sleeping_group")
    body = stage.wait_for_event("group", run)["body"]
    kill(worker.pid)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    assert gone(body)
    wait_until(lambda: not list(stage.spool.glob("worker-*")), 10, "a tidy folder")
    [state] = stage.ledger.workers().values()
    assert state["left"]


def test_a_worker_stopped_for_a_lease_loses_its_run_and_begins_anew(stage: Stage) -> None:
    worker = stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    stop(worker.pid)
    wait_until(lambda: gone(body), LEASE + 2, "the end of the body")
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    beats = sum(state.get("beats", 0) for state in stage.ledger.workers().values())
    wake(worker.pid)
    stage.wait_for_event("sleeps", run, count=2)
    assert len(stage.ledger.workers()) == 2
    assert beats


def test_a_killed_guard_is_replaced_and_the_run_goes_on(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 4)
    stage.wait_for_event("sleeps", run)
    guard = stage.guard_pid()
    kill(guard)
    wait_until(lambda: stage.guard_pid() not in (0, guard), 10, "another guard")
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert len(stage.ledger.workers()) == 1
    assert stage.events("sleeps", run)[0]["pid"]


def test_with_a_stopped_guard_a_child_fences_itself(stage: Stage) -> None:
    """Where no supervisor replaces the guard either."""
    worker = stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    guard = stage.guard_pid()
    stop(worker.pid)
    stop(guard)
    try:
        wait_until(lambda: gone(body), LEASE + 2, "the end of the body")
    finally:
        wake(guard)
        wake(worker.pid)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"


def test_with_a_stopped_guard_the_fence_holds_for_a_body_that_keeps_its_process_busy(stage: Stage) -> None:
    """Nothing else runs in it, so nothing there can fence it: the next guard comes before the lease is over."""
    lease = 16.0
    stage.feed(BEATKEEPER_LEASE_SECONDS=str(lease), BEATKEEPER_FENCE_MARGIN_SECONDS="10")
    run = stage.ledger.add_run("tests.computes", retry={"max_attempts": 1, "max_losses": 0})
    body = stage.wait_for_event("computes", run)["pid"]
    guard = stage.guard_pid()
    stop(guard)
    stopped = time.monotonic()
    wait_until(lambda: gone(body), 2 * lease, "the end of the body")
    assert time.monotonic() - stopped < lease
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    assert gone(guard)


def test_a_guard_that_never_wakes_is_replaced(stage: Stage) -> None:
    stage.feed()
    guard = stage.guard_pid()
    stop(guard)
    wait_until(lambda: stage.guard_pid() != guard and gone(guard), 3 * LEASE, "another guard")
    assert stage.wait_for_end(stage.ledger.add_run("tests.succeeds"))["next"] == "succeeded"


def test_a_stopped_child_is_killed_at_its_time_limit(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 60, timeout=1.0, retry={"max_attempts": 1})
    body = stage.wait_for_event("sleeps", run)["pid"]
    stop(body)
    assert stage.wait_for_end(run)["error_class"] == "timeout"
    assert gone(body)


def test_an_idle_guard_costs_next_to_nothing(stage: Stage) -> None:
    stage.feed(slots=4, BEATKEEPER_BEAT_SECONDS="1")
    guard = stage.guard_pid()
    assert cpu_share(guard) < 0.04
