"""Workers of threads and of greenlets: what they run for us runs in processes, and can be stopped like any other."""

import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from types import ModuleType, SimpleNamespace

import pytest
from celery import Celery
from celery.concurrency.base import BasePool
from celery.concurrency.thread import TaskPool

from scheduler_project.sdk.shared.slot_record import FOREIGN
from scheduler_project.sdk.worker.app_path import app_path
from scheduler_project.sdk.worker.bootstep import reason_to_refuse
from tests.sdk.stage import LEASE, gone, kill, stop
from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

GREEN = ["gevent", "eventlet"]
IN_PROCESS = ["threads", *GREEN]


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    """No heartbeat names work: what runs came by a wake-up."""
    stage = CeleryStage(processes, tmp_path, broker_url)
    yield stage
    processes.stop_all()
    stage.close()


@pytest.mark.parametrize("pool", IN_PROCESS)
def test_a_wakeup_starts_a_run_in_a_process_of_its_own(stage: CeleryStage, pool: str) -> None:
    worker = stage.worker(2, pool=pool)
    run = stage.add_run_with_wakeup("tests.succeeds", 7)
    assert stage.wait_for_end(run)["result"] == 7
    assert stage.events("succeeds", run)[0]["pid"] != worker.pid
    stage.send("tests.succeeds")
    wait_until(lambda: len(stage.events("succeeds")) == 2, 10, "the host's own task")
    assert stage.events("succeeds")[1]["pid"] == worker.pid
    assert worker.terminate() == 0
    [state] = stage.ledger.workers().values()
    assert state["left"]
    assert not list(stage.spool.glob("worker-*"))


def test_a_wakeup_wakes_a_child_at_once(stage: CeleryStage) -> None:
    stage.worker(2, pool="threads", BEATKEEPER_LOOK_SECONDS="60")
    stage.wait_for_end(stage.add_run_with_wakeup())
    waited = []
    for _ in range(5):
        run = stage.ledger.add_run()
        sent_at = time.time()
        stage.wakeup()
        waited.append(stage.wait_for_event("succeeds", run)["at"] - sent_at)
    assert median(waited) < 5


def test_many_wakeups_make_each_run_once(stage: CeleryStage) -> None:
    stage.worker(3, pool="threads")
    runs = [stage.add_run_with_wakeup("tests.succeeds", number) for number in range(60)]
    for run in runs:
        stage.wait_for_end(run)
    assert sorted(entry["run"] for entry in stage.events("succeeds")) == sorted(map(str, runs))
    wait_until(lambda: stage.messages() == 0, 15, "an empty queue")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize(
    ("option", "most"), [("--max-tasks-per-child=3", 3), ("--max-memory-per-child=1000", 1)]
)
def test_a_child_is_replaced_after_as_many_runs_as_the_host_says(
    stage: CeleryStage, pool: str, option: str, most: int
) -> None:
    """Who sets it has bodies that leak."""
    stage.worker(2, option, pool=pool)
    runs = [stage.add_run_with_wakeup() for _ in range(12)]
    for run in runs:
        assert stage.wait_for_end(run, timeout=40)["next"] == "succeeded"
    assert max(Counter(entry["pid"] for entry in stage.events("succeeds")).values()) <= most


def test_a_wakeup_leads_through_its_queue_where_runs_are_counted_too(stage: CeleryStage) -> None:
    """A child does one of them for each wake-up; the heartbeats name none."""
    stage.worker(2, "--max-tasks-per-child=1000")
    stage.wait_for_end(stage.add_run_with_wakeup())
    runs = [stage.ledger.add_run() for _ in range(30)]
    stage.wakeup()
    for run in runs:
        stage.wait_for_end(run)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_another_keeper_made_in_a_run_stops_no_other(stage: CeleryStage, pool: str) -> None:
    """As a body does that calls the factory of its Flask app."""
    stage.worker(1, pool=pool)
    stage.wait_for_end(stage.add_run_with_wakeup("tests.makes_a_keeper"))
    assert stage.wait_for_end(stage.add_run_with_wakeup())["next"] == "succeeded"


def test_no_wakeup_grows_as_old_as_its_run(stage: CeleryStage) -> None:
    """So the broker's consumer time-out has nothing to complain of, however long the runs are."""
    worker = stage.worker(1, pool="threads")
    stage.wait_for_event("sleeps", stage.add_run_with_wakeup("tests.sleeps", 60))
    for _ in range(5):
        stage.wakeup()
    wait_until(lambda: stage.messages() + stage.unacked() == 0, 15, "all wake-ups acked")
    assert worker.is_alive()


def test_the_feed_logs_what_its_worker_does(stage: CeleryStage) -> None:
    worker = stage.worker(1, "-l", "WARNING", pool="threads")
    run = stage.add_run_with_wakeup()
    # Its line would have been written before.
    stage.wait_for_end(run)
    assert str(run) not in worker.text()


def test_threads_of_the_hosts_own_tasks_take_slots(stage: CeleryStage) -> None:
    stage.worker(2, pool="threads")
    stage.send("tests.sleeps", 3)
    wait_until(lambda: stage.table().states().count(FOREIGN) == 1, 10, "one slot for the host's task")
    stage.send("tests.sleeps", 3)
    wait_until(lambda: stage.table().states() == [FOREIGN, FOREIGN], 10, "both slots for the host's tasks")
    run = stage.add_run_with_wakeup()
    wait_until(lambda: len(stage.events("slept")) == 2, 10, "the end of the host's tasks")
    assert (
        not stage.ledger.ends(run) or stage.events("succeeds", run)[0]["at"] > stage.events("slept")[0]["at"]
    )
    wait_until(lambda: FOREIGN not in stage.table().states(), 15, "free slots")
    stage.ledger.change(no_work_named=False)
    stage.wait_for_end(run)


def test_greenlets_beyond_the_slots_take_none(stage: CeleryStage) -> None:
    stage.worker(20, pool="gevent", BEATKEEPER_SLOTS="2")
    for _ in range(18):
        stage.send("tests.sleeps", 30)
    wait_until(lambda: len(stage.events("sleeps")) == 18, 20, "the host's tasks")
    stage.wait_for_end(stage.add_run_with_wakeup())
    stage.send("tests.sleeps", 30)
    wait_until(lambda: stage.table().states().count(FOREIGN) == 1, 10, "a slot for one too many")


def test_a_killed_feed_is_reported_and_started_again(stage: CeleryStage) -> None:
    stage.worker(2, pool="threads")
    run = stage.add_run_with_wakeup("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    feed = parent_of(body)
    kill(feed)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    assert gone(body)
    stage.wakeup()
    again = stage.wait_for_event("sleeps", run, count=2)["pid"]
    assert parent_of(again) != feed


@pytest.mark.parametrize("pool", ["threads", pytest.param("gevent", marks=pytest.mark.chaos)])
def test_a_hung_feed_is_replaced_and_what_it_runs_goes_on(stage: CeleryStage, pool: str) -> None:
    stage.worker(2, pool=pool)
    long = stage.add_run_with_wakeup("tests.sleeps", 4 * LEASE)
    feed = parent_of(stage.wait_for_event("sleeps", long)["pid"])
    stop(feed)
    wait_until(lambda: stage.table().header.feed_pid not in (0, feed), 4 * LEASE, "another feed")
    again = stage.add_run_with_wakeup()
    stage.wait_for_end(again)
    assert parent_of(stage.wait_for_event("sleeps", long)["pid"]) == feed, "its body is left alone"
    # The slot of the other child is the new feed's.
    assert not stage.ledger.ends(long)
    assert stage.wait_for_end(long, timeout=6 * LEASE)["next"] == "succeeded"
    assert len(stage.events("sleeps", long)) == 1
    wait_until(lambda: gone(feed), 10, "the end of the hung feed")
    assert stage.table().header.feed_pid != feed


def test_a_feed_that_waits_for_a_lock_is_replaced(stage: CeleryStage) -> None:
    """It forks one child, and no other when that one dies: its worker looks alive all the time."""
    hangs = stage.spool.parent / "hangs"
    hangs.touch()
    worker = stage.worker(1, pool="threads", SAMPLE_FEED_HANGS=str(hangs))
    dies = stage.add_run_with_wakeup("tests.dies", retry={"max_attempts": 1, "max_losses": 0})
    assert stage.wait_for_end(dies)["error_class"] == "worker_lost"
    assert stage.events("hung")
    waiting = stage.add_run_with_wakeup()
    assert stage.wait_for_end(waiting, timeout=6 * LEASE)["next"] == "succeeded"
    assert "The feed hangs" in worker.text()
    wait_until(lambda: gone(stage.events("hung")[0]["pid"]), 10, "the end of the hung feed")


def test_a_drain_lets_what_a_hung_feed_runs_end(stage: CeleryStage) -> None:
    worker = stage.worker(2, pool="threads")
    run = stage.add_run_with_wakeup("tests.sleeps", 3 * LEASE)
    feed = parent_of(stage.wait_for_event("sleeps", run)["pid"])
    stop(feed)
    wait_until(lambda: stage.table().header.feed_pid not in (0, feed), 4 * LEASE, "another feed")
    worker.send(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert stage.wait_for_end(run)["next"] == "succeeded"
    assert gone(feed)


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_drain_says_how_long_it_takes_and_gives_back(stage: CeleryStage, pool: str) -> None:
    worker = stage.worker(2, pool=pool, BEATKEEPER_DRAIN_SECONDS="1.5")
    long, short = stage.add_run_with_wakeup("tests.sleeps", 60), stage.add_run_with_wakeup("tests.sleeps", 1)
    bodies = [stage.wait_for_event("sleeps", run)["pid"] for run in (long, short)]
    worker.send(signal.SIGTERM)
    worker.wait_for_output("what runs has 1.5 s to end")
    assert worker.wait(20) == 0
    assert stage.wait_for_end(short)["next"] == "succeeded"
    assert stage.wait_for_end(long)["kind"] == "given_back"
    assert all(gone(body) for body in bodies)


def test_without_a_broker_for_wakeups_runs_are_fetched(stage: CeleryStage) -> None:
    """A broker within memory has no other process to send one."""
    stage.ledger.change(no_work_named=False)
    worker = stage.processes.python(
        *("celery", "-A", "tests.support.sample_tasks", "worker", "-P", "threads", "-c", "2", "-l", "INFO"),
        env=stage.environment(SAMPLE_BROKER_URL="memory://"),
    )
    worker.wait_for_output("This broker carries no wake-ups")
    assert stage.wait_for_end(stage.ledger.add_run("tests.succeeds", 3))["result"] == 3


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_run_meets_the_app_as_the_module_makes_it_that_is_named(stage: CeleryStage, pool: str) -> None:
    """Not that in which it stands: a factory makes it ready elsewhere."""
    stage.worker(1, pool=pool, app="tests.samples.factory.wsgi.celery")
    run = stage.add_run_with_wakeup("tests.names_application", retry={"max_attempts": 1})
    end = stage.wait_for_end(run)
    assert end["result"] == "made by wsgi", end


def test_it_meets_it_so_when_the_app_is_named_in_the_environment(stage: CeleryStage) -> None:
    worker = stage.processes.python(
        *("celery", "worker", "-P", "threads", "-c", "1", "-Q", stage.host_queue),
        env=stage.environment(
            CELERY_APP="tests.samples.factory.wsgi.celery", SAMPLE_BROKER_URL=stage.host_broker
        ),
    )
    wait_until(lambda: stage.consumers() > 0 or not worker.is_alive(), 30, "a consumer")
    run = stage.add_run_with_wakeup("tests.names_application", retry={"max_attempts": 1})
    end = stage.wait_for_end(run)
    assert end["result"] == "made by wsgi", end


def test_while_the_broker_is_away_a_run_meets_it_so_too(
    processes: Processes, tmp_path: Path, private_rabbitmq: PrivateRabbitMQ
) -> None:
    """In the feed that the guard keeps then."""
    stage = CeleryStage(processes, tmp_path, private_rabbitmq.url)
    stage.worker(1, app="tests.samples.factory.wsgi.celery")
    stage.ledger.change(no_work_named=False)
    private_rabbitmq.stop()
    run = stage.ledger.add_run("tests.names_application", retry={"max_attempts": 1})
    end = stage.wait_for_end(run, timeout=30)
    private_rabbitmq.start()
    assert end["result"] == "made by wsgi"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_sentry_sees_the_task_that_failed_and_no_wakeup(
    stage: CeleryStage, pool: str, tmp_path: Path
) -> None:
    sent = tmp_path / "sent"
    stage.worker(1, pool=pool, app="tests.support.sample_sentry", SAMPLE_SENTRY=str(sent))
    run = stage.add_run_with_wakeup("tests.raises", retry={"max_attempts": 1})
    assert stage.wait_for_end(run)["error_type"] == "ValueError"
    # Its report was sent before the next run.
    stage.wait_for_end(stage.add_run_with_wakeup())
    [event] = [json.loads(line) for line in sent.read_text().splitlines()]
    assert (event["transaction"], event["exception"]["values"][-1]["type"]) == ("tests.raises", "ValueError")
    assert event["extra"]["celery-job"]["task_name"] == "tests.raises"
    assert event["tags"]["celery_task_id"] == str(run)


def has(app: Celery) -> ModuleType:
    module = ModuleType("has")
    module.app = app  # type: ignore[attr-defined]
    return module


def test_unnamed_an_app_is_found_where_others_are_imported_but_in_no_module_of_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An import that ends later began earlier; a worker imports tasks last."""
    app = Celery("shop", set_as_current=False)
    for name in ("shop_extensions", "shop_wsgi", "shop_tasks", "__main__"):
        monkeypatch.setitem(sys.modules, name, has(app))
    app.loader.import_task_module("shop_tasks")
    assert app_path(app) == "shop_wsgi:app"


@pytest.mark.parametrize("name", ["celery_app", "celeryconfig", "celery_worker.main"])
def test_an_app_is_found_in_a_module_whose_name_begins_with_celery(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    app = Celery("tutorial", set_as_current=False)
    monkeypatch.setitem(sys.modules, name, has(app))
    assert app_path(app) == f"{name}:app"


def test_an_app_that_no_other_process_finds_is_refused_in_a_sentence() -> None:
    worker = SimpleNamespace(app=Celery("nowhere"), pool_cls=TaskPool)
    assert "which cannot find this app" in reason_to_refuse(worker, "postgresql://")


def test_a_pool_that_is_not_known_is_refused_in_a_sentence() -> None:
    worker = SimpleNamespace(app=Celery("nowhere"), pool_cls=BasePool)
    assert "use prefork, threads, gevent, eventlet or solo" in reason_to_refuse(worker, "postgresql://")


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[1])
