"""Workers of threads and of greenlets: what they run for us runs in processes, and can be stopped like any other."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.concurrency.base import BasePool
from celery.concurrency.thread import TaskPool

from scheduler_project.sdk.slots import FOREIGN
from scheduler_project.sdk.worker import why_not
from tests.processes import Processes
from tests.sdk.celery_stage import CeleryStage
from tests.sdk.stage import gone, kill
from tests.waiting import wait_until

GREEN = ["gevent", "eventlet"]
IN_PROCESS = ["threads", *GREEN]


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    """No heartbeat names work: what runs came by a permit."""
    stage = CeleryStage(processes, tmp_path, broker_url)
    yield stage
    processes.stop_all()
    stage.close()


@pytest.mark.parametrize("pool", IN_PROCESS)
def test_a_permit_starts_a_run_in_a_process_of_its_own(stage: CeleryStage, pool: str) -> None:
    worker = stage.worker(2, pool=pool)
    run = stage.add_permitted_run("tests.succeeds", 7)
    assert stage.wait_for_end(run)["result"] == 7
    assert stage.events("succeeds", run)[0]["pid"] != worker.pid
    stage.send("tests.succeeds")
    wait_until(lambda: len(stage.events("succeeds")) == 2, 10, "the host's own task")
    assert stage.events("succeeds")[1]["pid"] == worker.pid
    assert worker.terminate() == 0
    [state] = stage.ledger.workers().values()
    assert state["left"]
    assert not list(stage.spool.glob("worker-*"))


def test_a_permit_wakes_a_child_at_once(stage: CeleryStage) -> None:
    stage.worker(2, pool="threads")
    stage.wait_for_end(stage.add_permitted_run())
    waited = []
    for _ in range(5):
        run = stage.ledger.add_run()
        sent_at = time.time()
        stage.permit()
        waited.append(stage.wait_for_event("succeeds", run)["at"] - sent_at)
    assert median(waited) < 0.5


def test_many_permits_make_each_run_once(stage: CeleryStage) -> None:
    stage.worker(3, pool="threads")
    runs = [stage.add_permitted_run("tests.succeeds", number) for number in range(60)]
    for run in runs:
        stage.wait_for_end(run)
    assert sorted(entry["run"] for entry in stage.events("succeeds")) == sorted(map(str, runs))
    wait_until(lambda: stage.messages() == 0, 5, "an empty queue")


def test_no_permit_grows_as_old_as_its_run(stage: CeleryStage) -> None:
    """So the broker's consumer time-out has nothing to complain of, however long the runs are."""
    worker = stage.worker(1, pool="threads")
    stage.wait_for_event("sleeps", stage.add_permitted_run("tests.sleeps", 60))
    for _ in range(5):
        stage.permit()
    wait_until(lambda: stage.messages() + stage.unacked() == 0, 15, "all permits acked")
    assert worker.is_alive()


def test_the_feed_logs_what_its_worker_does(stage: CeleryStage) -> None:
    worker = stage.worker(1, "-l", "WARNING", pool="threads")
    run = stage.add_permitted_run()
    # Its line would have been written before.
    stage.wait_for_end(run)
    assert str(run) not in worker.text()


def test_threads_of_the_hosts_own_tasks_take_slots(stage: CeleryStage) -> None:
    stage.worker(2, pool="threads")
    stage.send("tests.sleeps", 3)
    wait_until(lambda: stage.table().states().count(FOREIGN) == 1, 10, "one slot for the host's task")
    stage.send("tests.sleeps", 3)
    wait_until(lambda: stage.table().states() == [FOREIGN, FOREIGN], 10, "both slots for the host's tasks")
    run = stage.add_permitted_run()
    wait_until(lambda: len(stage.events("slept")) == 2, 10, "the end of the host's tasks")
    assert (
        not stage.ledger.ends(run) or stage.events("succeeds", run)[0]["at"] > stage.events("slept")[0]["at"]
    )
    wait_until(lambda: FOREIGN not in stage.table().states(), 5, "free slots")
    stage.ledger.change(no_work_named=False)
    stage.wait_for_end(run)


def test_greenlets_beyond_the_slots_take_none(stage: CeleryStage) -> None:
    stage.worker(20, pool="gevent", BEATKEEPER_SLOTS="2")
    for _ in range(18):
        stage.send("tests.sleeps", 30)
    wait_until(lambda: len(stage.events("sleeps")) == 18, 20, "the host's tasks")
    stage.wait_for_end(stage.add_permitted_run())
    stage.send("tests.sleeps", 30)
    wait_until(lambda: stage.table().states().count(FOREIGN) == 1, 10, "a slot for one too many")


def test_a_killed_feed_is_told_and_started_again(stage: CeleryStage) -> None:
    stage.worker(2, pool="threads")
    run = stage.add_permitted_run("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    feed = parent_of(body)
    kill(feed)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    assert gone(body)
    stage.permit()
    again = stage.wait_for_event("sleeps", run, count=2)["pid"]
    assert parent_of(again) != feed


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_drain_says_how_long_it_takes_and_gives_back(stage: CeleryStage, pool: str) -> None:
    worker = stage.worker(2, pool=pool, BEATKEEPER_DRAIN_SECONDS="1.5")
    long, short = stage.add_permitted_run("tests.sleeps", 60), stage.add_permitted_run("tests.sleeps", 1)
    bodies = [stage.wait_for_event("sleeps", run)["pid"] for run in (long, short)]
    worker.send(signal.SIGTERM)
    worker.wait_for_output("what runs has 1.5 s to end")
    assert worker.wait(20) == 0
    assert stage.wait_for_end(short)["next"] == "succeeded"
    assert stage.wait_for_end(long)["kind"] == "given_back"
    assert all(gone(body) for body in bodies)


def test_without_a_broker_for_permits_runs_are_fetched(stage: CeleryStage) -> None:
    """Within memory there is nobody else to send one."""
    stage.ledger.change(no_work_named=False)
    worker = stage.processes.python(
        *("celery", "-A", "tests.sample_tasks", "worker", "-P", "threads", "-c", "2", "-l", "INFO"),
        env=stage.environment(SAMPLE_BROKER_URL="memory://"),
    )
    worker.wait_for_output("This broker carries no permits")
    assert stage.wait_for_end(stage.ledger.add_run("tests.succeeds", 3))["result"] == 3


def test_an_app_that_no_other_process_finds_is_refused_in_a_sentence() -> None:
    worker = SimpleNamespace(app=Celery("nowhere"), pool_cls=TaskPool)
    assert "which cannot find this app" in why_not(worker, "postgresql://")


def test_a_pool_that_is_not_known_is_refused_in_a_sentence() -> None:
    worker = SimpleNamespace(app=Celery("nowhere"), pool_cls=BasePool)
    assert "use prefork, threads, gevent, eventlet or solo" in why_not(worker, "postgresql://")


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
