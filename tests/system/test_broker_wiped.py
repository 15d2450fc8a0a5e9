"""RabbitMQ holds no truth (promise 5): take its messages away, and every run still happens, once."""

import signal

import amqp

from tests.factories import make_worker
from tests.private_rabbitmq import PrivateRabbitMQ
from tests.system.platform import WITNESS, Platform, send

RUNS = 240


def test_runs_whose_permits_were_purged_all_happen_once(
    platform_with_own_broker: Platform, private_rabbitmq: PrivateRabbitMQ
) -> None:
    platform = platform_with_own_broker
    platform.scheduler()
    worker = platform.worker(slots=2)
    worker.wait_until_known()
    # Before its lane exists: a consumer would take messages out of the queue.
    send(signal.SIGSTOP, *worker.whole())
    # Dispatch queues as much as living slots can take soon; so many real ones do not fit this machine.
    make_worker(platform.pool, slots=RUNS, known_targets=[WITNESS])
    job = platform.run_often(RUNS)
    (lane,) = platform.wait(lambda: platform.rows("SELECT queue FROM beatkeeper_lane"), 20, "the lane")

    with connection_to(private_rabbitmq) as connection:
        channel = connection.channel()
        platform.wait(lambda: ready_messages(connection, lane["queue"]) == RUNS, 20, "all permits")
        assert channel.queue_purge(lane["queue"]) == RUNS
        assert ready_messages(connection, lane["queue"]) == 0
    assert not platform.witnessed()

    send(signal.SIGCONT, *worker.whole())
    platform.wait(lambda: len(platform.finished(job)) == RUNS, 45, "all runs to end")
    assert {run["state"] for run in platform.runs(job)} == {"succeeded"}
    assert {run["attempts"] for run in platform.runs(job)} == {1}
    platform.assert_each_ran_once(platform.runs(job))


def connection_to(server: PrivateRabbitMQ) -> amqp.Connection:
    return amqp.Connection(f"127.0.0.1:{server.port}", virtual_host=server.vhost, connect_timeout=5)


def ready_messages(connection: amqp.Connection, queue: str) -> int:
    """By a passive declare; a queue that is not there has none."""
    channel = connection.channel()
    try:
        _, messages, _ = channel.queue_declare(queue, passive=True) or (queue, 0, 0)
        channel.close()
    except amqp.NotFound:
        return 0
    return messages
