"""The worker without a broker, end to end: what a run comes to, and how a worker leaves."""

import signal
from pathlib import Path
from uuid import uuid4

import pytest
from celery import Celery

from scheduler_project.sdk.execution.claim_loop import ClaimLoop
from scheduler_project.sdk.ledger.interface import WorkQueue
from scheduler_project.sdk.process import processes
from scheduler_project.sdk.shared.folder import Config, Runtime
from scheduler_project.sdk.targets.registry import Targets
from scheduler_project.sdk.worker import children
from scheduler_project.sdk.worker.children import serve
from tests.sdk.stage import LEASE, Stage, gone
from tests.support.waiting import wait_until


def test_a_queued_run_is_executed_and_reported(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.succeeds", 42)
    end = stage.wait_for_end(run)
    assert (end["next"], end["result"], end["log"]) == ("succeeded", 42, None)


def test_every_run_is_executed_once_by_many_children(stage: Stage) -> None:
    stage.feed(slots=4)
    runs = [stage.ledger.add_run("tests.succeeds", number) for number in range(60)]
    for run in runs:
        stage.wait_for_end(run)
    assert sorted(entry["run"] for entry in stage.events("succeeds")) == sorted(map(str, runs))


def test_output_is_in_the_log_and_the_open_file_is_gone(stage: Stage) -> None:
    stage.feed()
    end = stage.wait_for_end(stage.ledger.add_run("tests.prints", "first", "second"))
    text = stage.log_of(end)
    assert all(word in text for word in ("first", "second", "on stderr", "a warning"))
    wait_until(lambda: not list(stage.logs.root.glob("open/*")), 15, "no open log")


def test_a_running_log_can_be_followed(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 30)
    stage.wait_for_event("sleeps", run)
    wait_until(lambda: b"asleep" in (stage.logs.read_open(run, 1) or b""), 15, "the line of a running body")


def test_a_failure_carries_class_line_and_fingerprint(stage: Stage) -> None:
    stage.feed()
    first = stage.ledger.add_run("tests.raises", "no luck 17", retry={"max_attempts": 1})
    second = stage.ledger.add_run("tests.raises", "no luck 18", retry={"max_attempts": 1})
    one, two = stage.wait_for_end(first), stage.wait_for_end(second)
    assert (one["next"], one["error_class"], one["error_type"]) == ("dead", "transient", "ValueError")
    assert one["error_line"] == "no luck 17"
    assert one["fingerprint"] == two["fingerprint"]


def test_a_child_that_exits_is_a_failure_of_the_run_only(stage: Stage) -> None:
    stage.feed()
    end = stage.wait_for_end(stage.ledger.add_run("tests.exits", retry={"max_attempts": 1}))
    assert end["error_type"] == "SystemExit"
    stage.wait_for_end(stage.ledger.add_run("tests.succeeds"))


def test_a_failed_attempt_is_tried_again_with_its_number(stage: Stage) -> None:
    stage.feed()
    run = stage.ledger.add_run("tests.raises", retry={"max_attempts": 2, "base": 0})
    assert stage.wait_for_end(run)["next"] == "delayed"
    assert stage.wait_for_end(run, 2)["next"] == "dead"


def test_a_worker_that_hangs_without_a_child_left_does_not_look_alive(stage: Stage) -> None:
    """Its loop waits for a lock, and its only child died: no other is forked."""
    hangs = stage.spool.parent / "hangs"
    hangs.touch()
    worker = stage.feed(SAMPLE_FEED_HANGS=str(hangs))
    run = stage.ledger.add_run("tests.dies", retry={"max_attempts": 1, "max_losses": 0})
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    worker.wait_for_output("The worker hangs", 6 * LEASE)


def test_a_child_that_has_to_leave_begins_with_no_other_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two queues it has no slot: a supervisor that waits for its end takes it for finished, and kills it."""
    config = Config("w", "host", "default", "", 1, "", f"file://{tmp_path}/logs", [])
    runtime = Runtime.create(tmp_path, config)
    runtime.table.header.incarnation, runtime.table.header.fence_at = uuid4(), processes.boottime() + 60
    runtime.write_response([], [WorkQueue(number, 1, number, "") for number in range(5)])
    leaving, served = list[int](), list[int]()

    def serve_and_leave(_loop: ClaimLoop, queue: WorkQueue) -> int:
        served.append(queue.tenant_id)
        leaving.append(signal.SIGTERM)
        return 1

    monkeypatch.setattr(children, "serve_queue", serve_and_leave)
    serve(ClaimLoop(runtime, Targets(Celery(set_as_current=False))), 0, leaving)
    assert len(served) == 1


def test_sigterm_lets_the_current_run_finish(stage: Stage) -> None:
    worker = stage.feed()
    run = stage.ledger.add_run("tests.sleeps", 1.0)
    stage.wait_for_event("sleeps", run)
    worker.send(signal.SIGTERM)
    waiting = stage.ledger.add_run("tests.succeeds")
    assert worker.wait() == 0
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert stage.ledger.run(waiting)["state"] == "queued"
    [state] = stage.ledger.workers().values()
    assert state["left"]
    assert not list(stage.spool.glob("worker-*"))


def test_a_run_longer_than_the_drain_is_given_back_uncounted(stage: Stage) -> None:
    worker = stage.feed(BEATKEEPER_DRAIN_SECONDS="0.5")
    run = stage.ledger.add_run("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert stage.wait_for_end(run)["kind"] == "given_back"
    assert gone(body)
    state = stage.ledger.run(run)
    assert (state["state"], state["attempt"], state["claim_seq"]) == ("queued", 0, 1)
