"""What a permit costs the scheduler's process, beside py-amqp doing the same in the same run.

The publisher shares one interpreter with trigger and dispatch, so its CPU time is taken from theirs.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import amqp
import pytest
from django.conf import settings
from kombu.utils.url import parse_url

from runs.broker_session import WINDOW, Bell, Session
from runs.brokers import Broker
from runs.permits import Permit, message

QUEUES = 50
AT_LEAST_CHEAPER = 4


def test_a_permit_costs_a_fraction_of_what_py_amqp_needs(
    broker_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """More of them with PERMITS=100000."""
    count = int(os.environ.get("PERMITS", "5000"))
    permits = [
        Permit(f"{settings.QUEUE_PREFIX}.cost.{number % QUEUES}.v1", f"1:{number % QUEUES}", number % 10)
        for number in range(count)
    ]
    with Session(Broker("", broker_url)) as session:
        session.declare({permit.queue for permit in permits})
        ours = measure(lambda: publish(session, permits))
        assert session.confirmed == count
    theirs = measure(lambda: publish_with_py_amqp(broker_url, permits))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{count:,} permits to {QUEUES} queues, confirmed:"
            f" ours {told(ours, count)}; py-amqp {told(theirs, count)}\n"
        )
    assert ours[0] * AT_LEAST_CHEAPER < theirs[0]


def publish(session: Session, permits: list[Permit]) -> None:
    bell, at = Bell(), 0
    while at < len(permits) or session.waiting:
        batch = permits[at : at + min(500, session.room)]
        session.send(batch)
        at += len(batch)
        session.listen(bell, 0.0 if at < len(permits) and session.room else 1.0)


def publish_with_py_amqp(url: str, permits: list[Permit]) -> None:
    """As thriftily as it can: messages made beforehand would not have their ids, the rest is pipelined as ours."""
    address = parse_url(url)
    host = f"{address['hostname']}:{address['port'] or 5672}"
    vhost = address["virtual_host"] or "/"
    waiting: set[int] = set()

    def settle(tag: int, multiple: bool) -> None:
        waiting.difference_update([sent for sent in waiting if sent <= tag] if multiple else [tag])

    with amqp.Connection(host, address["userid"], address["password"], virtual_host=vhost) as connection:
        channel: Any = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(settle)
        for number, permit in enumerate(permits, start=1):
            waiting.add(number)
            channel.basic_publish(
                message(permit, f"{number:036}", "here"),
                exchange="",
                routing_key=permit.queue,
                mandatory=True,
            )
            while len(waiting) >= WINDOW:
                connection.drain_events(timeout=5)
        while waiting:
            connection.drain_events(timeout=5)


def measure(work: Callable[[], None]) -> tuple[float, float]:
    """Of this thread: seconds of CPU, and of the clock."""
    cpu, clock = time.thread_time(), time.monotonic()
    work()
    return time.thread_time() - cpu, time.monotonic() - clock


def told(seconds: tuple[float, float], count: int) -> str:
    return f"{seconds[0] / count * 1e6:.1f} µs of CPU each, {count / seconds[1]:,.0f} a second"
