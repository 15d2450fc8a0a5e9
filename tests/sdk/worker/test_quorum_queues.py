"""Where wake-ups are counted queue by queue: quorum queues everywhere, and all queues from RabbitMQ 4.0 on."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import amqp
import pytest
from kombu import Connection, Producer

from runs.scheduler.broker.config import QUEUES
from scheduler_project.sdk.worker.admission import ACKED_AFTER_SECONDS
from scheduler_project.sdk.worker.wakeup_intake import is_quorum
from tests.sdk.worker.celery_stage import CeleryStage
from tests.support.processes import Processes
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

SLOTS = 3


@pytest.fixture
def stage(processes: Processes, tmp_path: Path, broker_url: str) -> Iterator[CeleryStage]:
    """No heartbeat names work: what runs came by a wake-up."""
    stage = CeleryStage(processes, tmp_path, broker_url, "quorum")
    yield stage
    processes.stop_all()
    stage.close()


@pytest.fixture
def impatient(private_rabbitmq: PrivateRabbitMQ) -> Iterator[Callable[[int], None]]:
    """Have the broker look each second for wake-ups unacked for so long, on channels opened from now on."""

    def let_it_wait(seconds: int, look_every: int = 1) -> None:
        for setting in (f"consumer_timeout, {1000 * seconds}", f"channel_tick_interval, {1000 * look_every}"):
            private_rabbitmq.ctl("eval", f"application:set_env(rabbit, {setting}).")

    yield let_it_wait
    let_it_wait(1800, 60)


@pytest.mark.parametrize(
    ("queue", "quorum"),
    [("bk.default.acme.q1", True), ("bk.default.acme.v1", False), ("bk.quick.quorum.v2", False), ("", False)],
)
def test_the_name_of_a_queue_shows_its_type(queue: str, quorum: bool) -> None:
    assert is_quorum(queue) is quorum


def test_wakeups_of_one_queue_fill_all_slots(stage: CeleryStage) -> None:
    """One wake-up is let in at a time, and it makes room for the next before its run ends."""
    stage.worker(SLOTS)
    runs = [stage.add_run_with_wakeup("tests.sleeps", 60) for _ in range(SLOTS)]
    for run in runs:
        stage.wait_for_event("sleeps", run)
    wait_until(lambda: stage.unacked() == 0, 10, "no wake-up as old as its run")


def test_many_wakeups_make_each_run_once(stage: CeleryStage) -> None:
    stage.worker(2)
    runs = [stage.add_run_with_wakeup("tests.succeeds", number) for number in range(60)]
    for run in runs:
        stage.wait_for_end(run)
    assert sorted(entry["run"] for entry in stage.events("succeeds")) == sorted(map(str, runs))


def test_a_busy_worker_hoards_no_wakeups(stage: CeleryStage) -> None:
    """A wake-up of every queue would come to it, and the idle worker beside it would get none."""
    queues = [stage.declare(f"-{number}", "quorum") for number in range(10)]
    stage.ledger.change(later_broker_queues=queues)
    worker = stage.worker(1)
    long = stage.add_run_with_wakeup("tests.sleeps", 60)
    stage.wait_for_event("sleeps", long)
    wait_until(lambda: all(consumers(stage, queue) for queue in queues), 20, "consumers of all queues")
    for queue in queues:
        for _ in range(3):
            stage.wakeup(queue)
    wait_until(lambda: stage.unacked(*queues) + waiting(stage, queues) == 0, 15, "all wake-ups acked")
    assert worker.is_alive()


def test_queues_of_both_types_are_consumed_side_by_side(stage: CeleryStage) -> None:
    """So it is while a broker's queue type changes: the old queue is emptied, the new one used."""
    worker = stage.worker(2)
    renamed = stage.declare("", "classic")
    stage.ledger.change(later_broker_queues=[renamed])
    wait_until(lambda: consumers(stage, renamed), 20, "a consumer of the new queue")
    for queue in (renamed, stage.broker_queue):
        run = stage.ledger.add_run("tests.succeeds")
        stage.wakeup(queue)
        stage.wait_for_end(run)
    assert "connection lost" not in worker.text()
    assert consumers(stage, stage.broker_queue) == consumers(stage, renamed) == 1


def test_a_worker_that_ends_leaves_what_it_did_not_let_in(stage: CeleryStage) -> None:
    worker = stage.worker(1)
    stage.wait_for_end(stage.add_run_with_wakeup())
    assert worker.terminate() == 0
    assert stage.consumers() == 0


def consumers(stage: CeleryStage, queue: str) -> int:
    return int(declared(stage, queue).consumer_count)


def waiting(stage: CeleryStage, queues: list[str]) -> int:
    return sum(int(declared(stage, queue).message_count) for queue in queues)


def declared(stage: CeleryStage, queue: str) -> Any:
    return stage.channel.queue_declare(queue, passive=True)


@pytest.mark.parametrize(
    ("queue_type", "seconds", "pool", "acked_after"),
    [
        ("quorum", 4, "prefork", ACKED_AFTER_SECONDS),
        ("classic", 2, "threads", ACKED_AFTER_SECONDS),
        ("classic", 4, "prefork", 1.0),
        # With the minute that workers have.
        pytest.param("classic", 70, "prefork", ACKED_AFTER_SECONDS, marks=pytest.mark.chaos),
    ],
)
def test_no_wakeup_grows_as_old_as_the_consumer_timeout(
    processes: Processes,
    tmp_path: Path,
    private_rabbitmq: PrivateRabbitMQ,
    impatient: Callable[[int], None],
    queue_type: str,
    seconds: int,
    pool: str,
    acked_after: float,
) -> None:
    """All slots are busy for three times as long, and wake-ups keep coming: the broker has nothing to complain of."""
    impatient(seconds)
    stage = CeleryStage(processes, tmp_path, private_rabbitmq.url, queue_type)
    worker = stage.worker(SLOTS, pool=pool, SAMPLE_ACKED_AFTER=str(acked_after))
    runs = [stage.add_run_with_wakeup("tests.sleeps", 3.0 * seconds, timeout=600) for _ in range(SLOTS)]
    began_at = time.monotonic()
    for run in runs:
        stage.wait_for_event("sleeps", run)

    def over() -> bool:
        stage.wakeup()
        return time.monotonic() - began_at > 3 * seconds

    wait_until(over, 3 * seconds + 30, "three times the time-out", interval=0.5)
    for run in runs:
        stage.wait_for_end(run, timeout=30)
    stage.wait_for_end(stage.add_run_with_wakeup())
    assert worker.is_alive()
    assert "connection lost" not in worker.text()
    assert len(stage.events("sleeps")) == SLOTS


def test_the_broker_does_complain_of_a_wakeup_that_is_kept(
    private_rabbitmq: PrivateRabbitMQ, impatient: Callable[[int], None]
) -> None:
    """Or the test above would show nothing."""
    impatient(1)
    with Connection(private_rabbitmq.url) as connection:
        channel: Any = connection.channel()
        channel.queue_declare("kept", durable=True, auto_delete=False, arguments=QUEUES["quorum"][1])
        Producer(channel).publish({}, routing_key="kept")
        channel.basic_qos(0, 1, False)
        channel.basic_consume("kept", callback=lambda _: None)
        with pytest.raises(amqp.PreconditionFailed, match="timeout|timed out"):
            # The first event is the delivery, which a quorum queue of a loaded broker may make seconds later.
            for _ in range(2):
                connection.drain_events(timeout=60)
