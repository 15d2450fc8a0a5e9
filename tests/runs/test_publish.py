"""Attacks promise 5: the broker holds no truth, and its troubles are its own."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import kombu
import pytest
from django.conf import settings

from runs import publish
from runs.publish import Permit, Publisher
from tests.private_rabbitmq import PrivateRabbitMQ
from tests.waiting import wait_until


class Broker:
    """A look into the broker, on a connection of the test's own."""

    def __init__(self, url: str) -> None:
        self.connection: Any = kombu.Connection(url)

    def waiting(self, queue: str) -> int | None:
        with self.connection.channel() as channel:
            try:
                return int(channel.queue_declare(queue, passive=True).message_count)
            except self.connection.channel_errors:
                return None

    def take(self, queue: str) -> Any:
        with self.connection.channel() as channel:
            return channel.basic_get(queue, no_ack=True)

    def delete(self, queue: str) -> None:
        with self.connection.channel() as channel:
            channel.queue_delete(queue)

    def declare_otherwise(self, queue: str) -> None:
        with self.connection.channel() as channel:
            channel.queue_declare(queue, durable=True, auto_delete=False)


@pytest.fixture
def broker(broker_url: str) -> Iterator[Broker]:
    looking = Broker(broker_url)
    with looking.connection:
        yield looking


@pytest.fixture
def queue() -> str:
    return f"{settings.QUEUE_PREFIX}.publish.{uuid4().hex[:8]}.v1"


@pytest.fixture
def publisher(broker_url: str) -> Iterator[Publisher]:
    publisher = Publisher(broker_url)
    publisher.start()
    yield publisher
    stop(publisher)


def stop(publisher: Publisher) -> None:
    publisher.stopping = True
    publisher.join(10)


def test_a_permit_is_a_message_that_a_stock_worker_understands(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    publisher.offer([Permit(queue, "3:7", 6)])
    wait_until(lambda: broker.waiting(queue) == 1, 10, "the permit")
    message = broker.take(queue)
    headers, properties = message.headers, message.properties
    assert (headers["task"], headers["beatkeeper_lane"], headers["beatkeeper_v"]) == (
        "beatkeeper.run",
        "3:7",
        1,
    )
    assert headers["id"] == properties["correlation_id"]
    assert headers["timelimit"] == [None, None]
    assert (properties["delivery_mode"], properties["priority"]) == (2, 6)
    assert "expiration" not in properties
    assert json.loads(message.body)[:2] == [[], {}]


def test_the_best_permits_are_taken_first(publisher: Publisher, broker: Broker, queue: str) -> None:
    publisher.offer([Permit(queue, "1:1", priority) for priority in (1, 9, 4)])
    wait_until(lambda: broker.waiting(queue) == 3, 10, "three permits")
    assert [broker.take(queue).properties["priority"] for _ in range(3)] == [9, 4, 1]


def test_queues_are_declared_before_anything_is_published(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    publisher.declare([queue])
    wait_until(lambda: broker.waiting(queue) == 0, 10, "the queue")


def test_a_queue_that_is_gone_is_made_again_and_its_permit_sent_once_more(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    publisher.declare([queue])
    wait_until(lambda: broker.waiting(queue) == 0, 10, "the queue")
    broker.delete(queue)
    publisher.offer([Permit(queue, "1:1", 1)])
    wait_until(lambda: broker.waiting(queue) == 1, 10, "the returned permit")


def test_a_queue_with_other_arguments_is_used_as_it_is(
    publisher: Publisher, broker: Broker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_otherwise(queue)
    publisher.offer([Permit(queue, "1:1", 1)])
    wait_until(lambda: broker.waiting(queue) == 1, 10, "the permit")
    assert "other arguments" in caplog.text
    assert not publisher.broken


def test_thousands_of_permits_all_arrive(publisher: Publisher, broker: Broker, queue: str) -> None:
    publisher.offer(Permit(queue, "1:1", number % 10) for number in range(5000))
    wait_until(lambda: broker.waiting(queue) == 5000, 30, "5,000 permits")
    assert publisher.dropped == 0


def test_what_does_not_fit_into_memory_is_dropped_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "MOST_IN_MEMORY", 10)
    publisher = Publisher("amqp://nowhere")
    publisher.offer(Permit("q", "1:1", 1) for _ in range(25))
    assert publisher.dropped == 15


def test_a_broker_that_stops_and_comes_back_is_used_again(private_rabbitmq: PrivateRabbitMQ) -> None:
    publisher = Publisher(private_rabbitmq.url)
    publisher.start()
    publisher.offer([Permit("before", "1:1", 1)])
    wait_until(lambda: private_rabbitmq.queues().get("before") == 1, 20, "the first permit")
    private_rabbitmq.kill()
    wait_until(lambda: publisher.broken, 20, "the breaker to open")
    private_rabbitmq.start()
    wait_until(lambda: not publisher.broken, 60, "the breaker to close")
    publisher.offer([Permit("after", "1:1", 1)])
    wait_until(lambda: private_rabbitmq.queues().get("after") == 1, 20, "the permit afterwards")
    assert "before" in private_rabbitmq.queues()
    stop(publisher)


def test_a_broker_under_an_alarm_confirms_nothing_and_opens_the_breaker(
    private_rabbitmq: PrivateRabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "TIMEOUT_SECONDS", 1.0)
    publisher = Publisher(private_rabbitmq.url)
    publisher.start()
    publisher.offer([Permit("q", "1:1", 1)])
    wait_until(lambda: private_rabbitmq.queues().get("q") == 1, 20, "the first permit")
    private_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        wait_until(lambda: offer_one(publisher) and publisher.broken, 30, "the breaker", interval=0.5)
    finally:
        private_rabbitmq.ctl("set_vm_memory_high_watermark", "0.6")
    wait_until(
        lambda: offer_one(publisher) and not publisher.broken, 60, "the end of the alarm", interval=0.5
    )
    stop(publisher)


def offer_one(publisher: Publisher) -> bool:
    publisher.offer([Permit("q", "1:1", 1)])
    return True
