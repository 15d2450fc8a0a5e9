"""Attacks promise 5: the broker holds no truth, and its troubles are its own."""

import json
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import kombu
import pytest
from django.conf import settings

from runs.scheduler.broker import publisher as publish
from runs.scheduler.broker.config import Broker as AtBroker
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.publisher import Publisher
from runs.scheduler.broker.session import AmqpSession
from tests.support.waiting import wait_until


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
    publisher = Publisher(AtBroker("", broker_url))
    publisher.start()
    yield publisher
    stop(publisher)


def stop(publisher: Publisher) -> None:
    publisher.stopping = True
    publisher.join(10)


def test_a_wakeup_is_a_message_that_a_stock_worker_understands(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    publisher.offer([Wakeup(queue, "3:7")])
    wait_until(lambda: broker.waiting(queue) == 1, 10, "the wake-up")
    message = broker.take(queue)
    headers, properties = message.headers, message.properties
    assert (headers["task"], headers["beatkeeper_queue"], headers["beatkeeper_v"]) == (
        "beatkeeper.run",
        "3:7",
        1,
    )
    assert headers["id"] == properties["correlation_id"]
    assert headers["timelimit"] == [None, None]
    assert properties["delivery_mode"] == 1
    assert "expiration" not in properties
    assert json.loads(message.body)[:2] == [[], {}]


def test_queues_are_declared_before_anything_is_published(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    publisher.declare([queue])
    wait_until(lambda: broker.waiting(queue) == 0, 10, "the queue")


def test_a_queue_that_is_gone_is_made_again_and_its_wakeup_sent_once_more(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    publisher.declare([queue])
    wait_until(lambda: broker.waiting(queue) == 0, 10, "the queue")
    broker.delete(queue)
    publisher.offer([Wakeup(queue, "1:1")])
    wait_until(lambda: broker.waiting(queue) == 1, 10, "the returned wake-up")


def test_a_queue_with_other_arguments_is_used_as_it_is(
    publisher: Publisher, broker: Broker, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker.declare_otherwise(queue)
    publisher.offer([Wakeup(queue, "1:1")])
    wait_until(lambda: broker.waiting(queue) == 1, 10, "the wake-up")
    assert "other arguments" in caplog.text
    assert not publisher.broken


def test_thousands_of_wakeups_all_arrive(publisher: Publisher, broker: Broker, queue: str) -> None:
    publisher.offer(Wakeup(queue, "1:1") for number in range(5000))
    wait_until(lambda: broker.waiting(queue) == 5000, 30, "5,000 wake-ups")
    assert publisher.dropped == 0


def test_what_does_not_fit_into_memory_is_dropped_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "MAX_IN_MEMORY", 10)
    publisher = Publisher(AtBroker("", "amqp://nowhere"))
    publisher.offer(Wakeup("q", "1:1") for _ in range(25))
    assert publisher.dropped == 15


def test_offers_of_wakeups_without_a_taker_are_bounded_also_while_the_breaker_is_open() -> None:
    publisher = Publisher(AtBroker("", "amqp://nowhere"))
    publisher.broken = True
    for _ in range(10):
        publisher.offer([Wakeup("q", "1:1")] * 1000)
    assert len(publisher.waiting) == publish.PROBE
    assert publisher.dropped == 10_000 - publish.PROBE


def test_queues_of_pools_that_went_elsewhere_are_not_declared_again(
    publisher: Publisher, broker: Broker, queue: str
) -> None:
    other = queue.replace(".publish.", ".elsewhere.")
    publisher.declare([queue, other])
    wait_until(lambda: broker.waiting(queue) == broker.waiting(other) == 0, 10, "both queues")
    publisher.declare_only([queue])
    broker.delete(other)
    broker.delete(queue)
    with patch.object(AmqpSession, "listen", side_effect=ConnectionResetError):
        wait_until(lambda: publisher.broken, 10, "the end of the connection")
    wait_until(lambda: broker.waiting(queue) == 0, 10, "the queue of ours")
    assert broker.waiting(other) is None


def test_a_publisher_that_stops_says_good_bye(broker_url: str, broker: Broker, queue: str) -> None:
    publisher = Publisher(AtBroker("", broker_url))
    publisher.start()
    publisher.offer([Wakeup(queue, "1:1")])
    wait_until(lambda: publisher.confirmed == 1, 10, "the wake-up")
    stop(publisher)
    assert not publisher.broken
