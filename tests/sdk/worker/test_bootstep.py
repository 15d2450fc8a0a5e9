"""Beatkeeper inside `celery worker`, with a real broker: wake-ups, the host's own tasks, and every way to end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery
from kombu import Connection, Producer, Queue

from tests.sdk.stage import LEASE, cpu_share, gone, kill, stop, wake
from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes, RealProcess
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    stage = CeleryStage(processes, tmp_path, broker_url)
    yield stage
    processes.stop_all()
    stage.close()


def test_a_wakeup_starts_a_run(stage: CeleryStage) -> None:
    stage.worker()
    run = stage.add_run_with_wakeup("tests.succeeds", 7)
    assert stage.wait_for_end(run)["result"] == 7
    assert stage.messages() == 0


def test_an_app_whose_factory_was_called_twice_takes_its_runs(stage: CeleryStage) -> None:
    stage.worker(1, SAMPLE_KEPT_TWICE="1", SAMPLE_DECLARES="1")
    assert stage.wait_for_end(stage.add_run_with_wakeup())["next"] == "succeeded"
    wait_until(stage.ledger.declared, 10, "what was declared with the first keeper")


def test_a_job_that_cannot_be_declared_leaves_the_hosts_worker_alone(stage: CeleryStage) -> None:
    worker = stage.processes.python(
        *("celery", "-A", "tests.support.sample_tasks", "worker", "-l", "INFO", "-c", "1"),
        *("-Q", stage.host_queue, "-n", "badly@host"),
        env=stage.environment(SAMPLE_BROKER_URL=stage.host_broker, SAMPLE_DECLARES_BADLY="1"),
    )
    worker.wait_for_output(
        "Beatkeeper takes no runs in this worker: The task tests.succeeds cannot be declared: no catalog"
    )
    worker.wait_for_output("ready.")
    stage.send("tests.succeeds", 7)
    wait_until(lambda: stage.events("succeeds"), 20, "the host's own task")


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_an_app_that_takes_only_pickles_takes_wakeups(stage: CeleryStage, pool: str) -> None:
    """As apps did before Celery 4. Wake-ups are JSON and stay so: nothing of a queue's is unpickled."""
    stage.worker(1, pool=pool, SAMPLE_PICKLES="1", C_FORCE_ROOT="1")
    assert stage.wait_for_end(stage.add_run_with_wakeup("tests.succeeds", 7))["result"] == 7


def test_a_solo_worker_carries_out_its_runs(stage: CeleryStage) -> None:
    stage.worker(1, pool="solo")
    runs = [stage.add_run_with_wakeup("tests.succeeds", number) for number in range(3)]
    assert [stage.wait_for_end(run)["result"] for run in runs] == [0, 1, 2]


def test_solo_is_signalled_to_stop_at_the_time_limit(stage: CeleryStage) -> None:
    worker = stage.worker(1, pool="solo")
    run = stage.add_run_with_wakeup("tests.sleeps", 60, timeout=0.5, retry={"max_attempts": 1})
    assert stage.wait_for_end(run)["error_class"] == "timeout"
    assert stage.wait_for_end(stage.add_run_with_wakeup())["next"] == "succeeded"
    assert worker.is_alive()


def test_many_wakeups_make_each_run_once(stage: CeleryStage) -> None:
    stage.worker(2)
    runs = [stage.add_run_with_wakeup("tests.succeeds", number) for number in range(80)]
    for run in runs:
        stage.wait_for_end(run)
    assert sorted(entry["run"] for entry in stage.events("succeeds")) == sorted(map(str, runs))


def test_an_autoscaled_worker_makes_room_as_runs_come(stage: CeleryStage) -> None:
    """Its autoscaler looks by itself only much later."""
    stage.worker(1, "--autoscale=3,1", AUTOSCALE_KEEPALIVE="600")
    runs = [stage.add_run_with_wakeup("tests.sleeps", 60) for _ in range(3)]
    for run in runs:
        stage.wait_for_event("sleeps", run)
    assert not stage.events("slept")


def test_a_pool_made_smaller_keeps_no_wakeups(stage: CeleryStage) -> None:
    worker = stage.worker(3)
    name = worker.command[worker.command.index("-n") + 1]
    app = Celery(broker=stage.broker, set_as_current=False)
    # Not one that kombu keeps from a test before, which may have cut it.
    with app.connection_for_write() as connection:
        assert app.control.pool_shrink(2, [name], reply=True, timeout=10, connection=connection)
    app.close()
    long = stage.add_run_with_wakeup("tests.sleeps", 60)
    stage.wait_for_event("sleeps", long)
    stage.wakeup()
    stage.wakeup()
    # As without a free slot: the long run's own may stay.
    wait_until(lambda: stage.messages() == 0 and stage.unacked() <= 1, 10, "acked wake-ups")


def test_stray_and_broken_messages_do_no_harm(stage: CeleryStage) -> None:
    worker = stage.worker()
    stage.wakeup()
    stage.wakeup(beatkeeper_queue="nonsense")
    Producer(stage.channel).publish(b"junk", routing_key=stage.broker_queue, content_type="text/plain")
    Producer(stage.channel).publish(
        b"{",
        routing_key=stage.broker_queue,
        headers={"task": "beatkeeper.run"},
        content_type="application/json",
    )
    stage.wait_for_end(stage.add_run_with_wakeup())
    wait_until(lambda: stage.messages() == 0, 15, "an empty queue")
    assert worker.is_alive()


def test_the_hosts_own_tasks_run_beside_and_are_seen(stage: CeleryStage) -> None:
    stage.worker(2)
    stage.send("tests.sleeps", 30)
    wait_until(lambda: foreign(stage) == 1, 10, "one slot for the host's task")
    stage.wait_for_end(stage.add_run_with_wakeup())


def test_the_hosts_task_is_not_fenced(stage: CeleryStage) -> None:
    stage.worker(2)
    stage.send("tests.sleeps", 7)
    wait_until(lambda: stage.events("sleeps"), 10, "the host's task")
    ours = stage.add_run_with_wakeup("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", ours)["pid"]
    stage.ledger.away.touch()
    wait_until(lambda: gone(body), 10, "the end of our body")
    wait_until(lambda: stage.events("slept"), 10, "the end of the host's task")
    assert stage.events("slept")[0]["run"] != str(ours)


def test_a_wakeup_without_a_free_slot_is_acked_soon(stage: CeleryStage) -> None:
    stage.worker(1)
    long = stage.add_run_with_wakeup("tests.sleeps", 60)
    stage.wait_for_event("sleeps", long)
    stage.wakeup()
    stage.wakeup()
    # The long run's own wake-up is acked late: it may stay. The others may not.
    wait_until(lambda: stage.unacked() <= 1, 10, "acked wake-ups")


def test_a_killed_child_is_reported_and_the_worker_goes_on(stage: CeleryStage) -> None:
    worker = stage.worker(1)
    run = stage.add_run_with_wakeup("tests.hangs", timeout=0.5, retry={"max_attempts": 1})
    assert stage.wait_for_end(run)["error_class"] == "timeout"
    assert stage.wait_for_end(stage.add_run_with_wakeup())["next"] == "succeeded"
    assert worker.is_alive()


def test_a_queue_that_comes_later_is_consumed(stage: CeleryStage) -> None:
    stage.queue.delete()
    worker = stage.processes.python(
        *(
            "celery",
            "-A",
            "tests.support.sample_tasks",
            "worker",
            "-Q",
            stage.host_queue,
            "-l",
            "INFO",
            "-c",
            "1",
        ),
        env=stage.environment(SAMPLE_BROKER_URL=stage.broker),
    )
    worker.wait_for_output("Wake-ups: connected")
    stage.queue.queue_declare()
    wait_until(lambda: stage.consumers() == 1, 20, "a consumer of the new queue")
    stage.wait_for_end(stage.add_run_with_wakeup())


def test_a_deleted_queue_ends_no_worker(stage: CeleryStage) -> None:
    worker = stage.worker(1)
    stage.queue.delete()
    stage.channel = stage.connection.channel()
    stage.queue = Queue(stage.broker_queue, durable=True, queue_arguments=stage.arguments)(stage.channel)
    stage.queue.queue_declare()
    wait_until(lambda: stage.consumers() == 1, 20, "a consumer again")
    stage.wait_for_end(stage.add_run_with_wakeup())
    assert worker.is_alive()


def test_work_without_wakeups_is_fetched(stage: CeleryStage) -> None:
    stage.worker(1)
    run = stage.ledger.add_run("tests.succeeds", 3)
    stage.ledger.change(no_work_named=False)
    assert stage.wait_for_end(run, timeout=30)["result"] == 3


def test_a_worker_whose_event_loop_hangs_is_fed(stage: CeleryStage) -> None:
    worker = stage.worker(1, SAMPLE_STICKS="1")
    stage.send("tests.succeeds")
    wait_until(lambda: stage.events("hung"), 10, "an event loop that hangs")
    stage.ledger.change(no_work_named=False)
    stage.wait_for_end(stage.ledger.add_run("tests.succeeds"), timeout=30)
    assert "fetched from the ledger instead" in worker.text()


def test_a_feed_of_the_guard_that_hangs_is_replaced(stage: CeleryStage) -> None:
    worker = stage.worker(2, SAMPLE_STICKS="1")
    stage.send("tests.succeeds")
    wait_until(lambda: stage.events("hung"), 10, "an event loop that hangs")
    stage.ledger.change(no_work_named=False)
    long = stage.ledger.add_run("tests.sleeps", 4 * LEASE)
    stage.wait_for_event("sleeps", long)
    hung = stage.table().header.feed_pid
    stop(hung)
    wait_until(lambda: "The feed hangs" in worker.text(), 6 * LEASE, "a feed held for hung")
    runs = [stage.ledger.add_run("tests.succeeds") for _ in range(3)]
    for run in runs:
        assert stage.wait_for_end(run, timeout=40)["next"] == "succeeded"
    assert stage.wait_for_end(long, timeout=40)["next"] == "succeeded"
    assert len(stage.events("sleeps", long)) == 1
    wait_until(lambda: gone(hung), 10, "the end of the hung feed")


def test_while_the_broker_is_away_runs_are_fetched(
    processes: Processes, tmp_path: Path, private_rabbitmq: PrivateRabbitMQ
) -> None:
    stage = CeleryStage(processes, tmp_path, private_rabbitmq.url)
    worker = stage.worker(1)
    stage.wait_for_end(stage.add_run_with_wakeup())
    private_rabbitmq.stop()
    stage.ledger.change(no_work_named=False)
    stage.wait_for_end(stage.ledger.add_run("tests.succeeds"), timeout=30)
    stage.ledger.change(no_work_named=True)
    private_rabbitmq.start()
    assert worker.is_alive()
    wait_until(lambda: back_again(stage), 60, "a consumer after the broker came back")
    stage.wait_for_end(stage.add_run_with_wakeup())


def back_again(stage: CeleryStage) -> bool:
    try:
        stage.connection = Connection(stage.broker, connect_timeout=2)
        stage.channel = stage.connection.channel()
        stage.queue = Queue(stage.broker_queue, no_declare=True)(stage.channel)
        return stage.consumers() > 0
    except Exception:
        return False


def test_warm_shutdown_finishes_and_leaves(stage: CeleryStage) -> None:
    worker = stage.worker(1)
    run = stage.add_run_with_wakeup("tests.sleeps", 1.0)
    stage.wait_for_event("sleeps", run)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert stage.wait_for_end(run)["next"] == "succeeded"
    [state] = stage.ledger.workers().values()
    assert state["left"]


def test_warm_shutdown_gives_back_what_is_too_long(stage: CeleryStage) -> None:
    worker = stage.worker(1, BEATKEEPER_DRAIN_SECONDS="0.5")
    run = stage.add_run_with_wakeup("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    worker.send(signal.SIGTERM)
    worker.wait(20)
    assert stage.wait_for_end(run)["kind"] == "given_back"
    assert gone(body)


@pytest.mark.parametrize("how", ["SIGHUP", "celery control shutdown"])
def test_any_warm_shutdown_gives_back_what_is_too_long(stage: CeleryStage, how: str) -> None:
    worker = stage.worker(1, BEATKEEPER_DRAIN_SECONDS="0.5")
    run = stage.add_run_with_wakeup("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    if how == "SIGHUP":
        worker.send(signal.SIGHUP)
    else:
        shut_down(stage, worker)
    assert stage.wait_for_end(run)["kind"] == "given_back"
    wait_until(lambda: gone(body), 10, "the end of the body")


def test_a_worker_that_is_shut_down_takes_no_further_run(stage: CeleryStage) -> None:
    """Its loop stands still while its pool ends; that is no reason to feed it."""
    worker = stage.worker(2)
    long = stage.add_run_with_wakeup("tests.sleeps", 8)
    stage.wait_for_event("sleeps", long)
    shut_down(stage, worker)
    worker.wait_for_output("Got shutdown from remote")
    stage.ledger.change(no_work_named=False)
    later = stage.ledger.add_run()
    assert worker.wait() == 0
    assert stage.wait_for_end(long)["next"] == "succeeded"
    assert stage.ledger.run(later)["state"] == "queued"


def shut_down(stage: CeleryStage, worker: RealProcess) -> None:
    name = worker.command[worker.command.index("-n") + 1]
    with Celery(broker=stage.broker, set_as_current=False) as app, app.connection_for_write() as connection:
        app.control.shutdown([name], connection=connection)


def test_a_killed_worker_is_reported(stage: CeleryStage) -> None:
    worker = stage.worker(2)
    run = stage.add_run_with_wakeup("", kind="sleeping_group")
    body = stage.wait_for_event("group", run)["body"]
    kill(worker.pid)
    assert stage.wait_for_end(run)["error_class"] == "worker_lost"
    # It was killed before the report, and takes a moment to die.
    wait_until(lambda: gone(body), 15, "the end of the body")


def test_a_stopped_worker_loses_its_run_and_begins_anew(stage: CeleryStage) -> None:
    worker = stage.worker(1)
    run = stage.add_run_with_wakeup("tests.sleeps", 60)
    body = stage.wait_for_event("sleeps", run)["pid"]
    stop(worker.pid)
    wait_until(lambda: gone(body), 10, "the end of the body")
    wake(worker.pid)
    wait_until(lambda: len(stage.ledger.workers()) == 2, 10, "a new incarnation")


def test_an_idle_worker_costs_next_to_nothing(stage: CeleryStage) -> None:
    worker = stage.worker(2, BEATKEEPER_BEAT_SECONDS="1")
    assert cpu_share(worker.pid) < 0.06


def test_the_guard_imports_no_celery() -> None:
    code = "import sys, scheduler_project.sdk.guard.guard; sys.exit('celery' in sys.modules or 'django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def foreign(stage: CeleryStage) -> int:
    return max((int(state.get("foreign", 0)) for state in stage.ledger.workers().values()), default=0)
