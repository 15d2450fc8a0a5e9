"""Attacks promise 5 where it hurts: the broker is away, mute, full, emptied or another one; nobody waits for it."""

import time
from collections.abc import Iterator

import pytest

from runs.reasons import Reason
from runs.scheduler.broker import connection
from runs.scheduler.broker import publisher as publish
from runs.scheduler.broker import session as broker_session
from runs.scheduler.broker.config import Broker
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.publisher import Publisher, Publishers
from tests.support.servers.rabbitmq import PrivateRabbitMQ
from tests.support.waiting import wait_until

# No test of ours waits for a publisher; what is more than this stood in somebody's way.
AT_ONCE = 0.2
NOBODY = "amqp://guest:guest@127.0.0.1:1//"


@pytest.fixture
def publisher(private_rabbitmq: PrivateRabbitMQ) -> Iterator[Publisher]:
    """At a broker that it has reached."""
    publisher = Publisher(Broker("", private_rabbitmq.url))
    publisher.start()
    publisher.declare(["queue", "other"])
    publisher.offer([Wakeup("queue", "1:1")])
    wait_until(lambda: publisher.confirmed == 1, 20, "the first wake-up")
    yield publisher
    publisher.stopping = True
    publisher.join(10)


def offer(publisher: Publisher, count: int = 1) -> None:
    """Offer as dispatch does, which must never take long."""
    began_at = time.monotonic()
    publisher.offer([Wakeup("queue", "1:1")] * count)
    assert time.monotonic() - began_at < AT_ONCE


def comes_through(publisher: Publisher) -> bool:
    confirmed = publisher.confirmed
    offer(publisher)
    wait_until(lambda: publisher.confirmed > confirmed or publisher.broken, 10, "a confirmation")
    return publisher.confirmed > confirmed


def test_a_broker_that_dies_and_comes_back_is_used_again(
    publisher: Publisher, private_rabbitmq: PrivateRabbitMQ
) -> None:
    private_rabbitmq.kill()
    wait_until(lambda: publisher.broken, 10, "the breaker to open")
    for _ in range(50):
        offer(publisher, 1000)
    assert len(publisher.waiting) <= publish.PROBE
    private_rabbitmq.start()
    wait_until(lambda: not publisher.broken, 10, "the breaker to close")
    assert comes_through(publisher)


def test_another_broker_at_the_same_address_costs_about_a_second(
    publisher: Publisher, private_rabbitmq: PrivateRabbitMQ
) -> None:
    private_rabbitmq.replace()
    wait_until(lambda: not publisher.broken, publish.MAX_PAUSE + 1, "the breaker to close")
    wait_until(lambda: comes_through(publisher), 10, "a wake-up to the new broker")
    assert {"queue", "other"} <= set(private_rabbitmq.queues())


def test_a_broker_under_an_alarm_takes_nothing_and_is_used_again_when_it_is_over(
    publisher: Publisher, private_rabbitmq: PrivateRabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    def breaks() -> bool:
        """Send until the broker reports the alarm on that connection."""
        offer(publisher, 10)
        return publisher.broken

    private_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        wait_until(breaks, 4, "the breaker, by what the broker says of itself")
        for _ in range(100):
            offer(publisher, 1000)
        assert len(publisher.waiting) <= publish.PROBE
    finally:
        private_rabbitmq.ctl("set_vm_memory_high_watermark", "0.6")
    # By itself: nobody has to offer anything, and the connection is still the same.
    wait_until(lambda: not publisher.broken, 10, "the breaker to close")
    assert comes_through(publisher)
    assert "under an alarm" in caplog.text
    assert caplog.text.count("is away") == 1


def test_a_broker_under_an_alarm_that_does_not_say_so_opens_the_breaker_as_well(
    private_rabbitmq: PrivateRabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old broker, or one behind a proxy: it lets us connect again and confirms nothing."""
    monkeypatch.setattr(broker_session, "SILENT_SECONDS", 1.0)
    monkeypatch.setitem(connection.AmqpConnection.negotiate_capabilities, "connection.blocked", False)
    publisher = Publisher(Broker("", private_rabbitmq.url))
    publisher.start()
    wait_until(lambda: comes_through(publisher), 10, "the first wake-up")
    private_rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1")
    try:
        wait_until(lambda: not comes_through(publisher), 10, "the breaker")
        # It connects over and over, and does not take that for health.
        for _ in range(5):
            assert not comes_through(publisher)
    finally:
        private_rabbitmq.ctl("set_vm_memory_high_watermark", "0.6")
    wait_until(lambda: comes_through(publisher), 20, "a wake-up after the alarm", interval=0.3)
    wait_until(lambda: not publisher.broken, 10, "the breaker to close")
    publisher.stopping = True
    publisher.join(10)


def test_a_broker_that_answers_nothing_any_more_is_given_up(
    publisher: Publisher, private_rabbitmq: PrivateRabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half-open: the packets go nowhere and no connection is closed."""
    monkeypatch.setattr(broker_session, "SILENT_SECONDS", 1.0)
    private_rabbitmq.suspend()
    try:
        offer(publisher)
        wait_until(lambda: publisher.broken, 10, "the breaker to open")
        for _ in range(50):
            offer(publisher, 1000)
        assert len(publisher.waiting) <= publish.PROBE
    finally:
        private_rabbitmq.resume()
    wait_until(lambda: comes_through(publisher), 30, "a wake-up", interval=0.3)


def test_a_broker_that_lost_its_host_of_ours_is_used_again(
    publisher: Publisher, private_rabbitmq: PrivateRabbitMQ
) -> None:
    """Wiped: connections are closed, and for a while there is nothing to connect to."""
    private_rabbitmq.ctl("delete_vhost", private_rabbitmq.vhost)
    wait_until(lambda: publisher.broken, 10, "the breaker to open")
    private_rabbitmq.ctl("add_vhost", private_rabbitmq.vhost)
    private_rabbitmq.ctl("set_permissions", "--vhost", private_rabbitmq.vhost, "guest", ".*", ".*", ".*")
    wait_until(lambda: not publisher.broken, publish.MAX_PAUSE + 2, "the breaker to close")
    assert comes_through(publisher)


def test_of_a_cluster_the_next_address_is_tried(private_rabbitmq: PrivateRabbitMQ) -> None:
    publisher = Publisher(Broker("", f"{NOBODY};{private_rabbitmq.url}"))
    publisher.start()
    offer(publisher)
    wait_until(lambda: comes_through(publisher), 10, "a wake-up", interval=0.2)
    publisher.stopping = True
    publisher.join(10)


def test_a_dead_broker_delays_nobody_elses_wakeups(private_rabbitmq: PrivateRabbitMQ) -> None:
    alive = Broker("alive", private_rabbitmq.url)
    publishers = Publishers({"dead": Broker("dead", NOBODY), "alive": alive})
    publishers.start()
    wait_until(lambda: publishers.notice("dead") == Reason.BROKER_AWAY, 10, "the notice")
    confirmed = publishers.by_broker["alive"]
    for _ in range(20):
        began_at = time.monotonic()
        publishers.offer("dead", [Wakeup("queue", "1:1")] * 1000)
        publishers.offer("alive", [Wakeup("queue", "2:1")] * 10)
        assert time.monotonic() - began_at < AT_ONCE
    wait_until(lambda: confirmed.confirmed == 200, 10, "all wake-ups of the living one")
    assert publishers.notice("alive") == ""
    publishers.stop()
    publishers.join(time.monotonic() + 10)


def test_a_broker_that_nobody_knows_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    publishers = Publishers({})
    for _ in range(3):
        publishers.offer("payments", [Wakeup("queue", "1:1")])
        publishers.declare("payments", ["queue"])
    assert publishers.notice("payments") == Reason.UNKNOWN_BROKER
    assert caplog.text.count("BEATKEEPER_BROKERS names no broker payments") == 1
    # No broker at all is no mistake: workers are fed by their heartbeats.
    publishers.offer("", [Wakeup("queue", "1:1")])
    assert publishers.notice("") == ""


def test_no_url_is_shown_anywhere() -> None:
    broker = Broker("payments", "amqp://user:geheim@broker/vhost")
    assert "geheim" not in f"{broker} {broker!r} {Publishers({'payments': broker}).by_broker!r}"
