"""What a wake-up costs the scheduler's process, beside py-amqp doing the same in the same run.

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

from runs.scheduler.broker.config import Broker
from runs.scheduler.broker.message import Wakeup, message
from runs.scheduler.broker.session import WINDOW, AmqpSession
from runs.scheduler.broker.wake_socket import WakeSocket

QUEUES = 50
AT_LEAST_CHEAPER = 4


def test_a_wakeup_costs_a_fraction_of_what_py_amqp_needs(
    broker_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """More of them with PERMITS=100000."""
    count = int(os.environ.get("WAKEUPS", "5000"))
    wakeups = [
        Wakeup(f"{settings.QUEUE_PREFIX}.cost.{number % QUEUES}.v1", f"1:{number % QUEUES}")
        for number in range(count)
    ]
    with AmqpSession(Broker("", broker_url)) as session:
        session.declare({wakeup.broker_queue for wakeup in wakeups})
        ours = measure(lambda: publish(session, wakeups))
        assert session.confirmed == count
    theirs = measure(lambda: publish_with_py_amqp(broker_url, wakeups))
    with capsys.disabled():
        sys.stdout.write(
            f"\n{count:,} wake-ups to {QUEUES} queues, confirmed:"
            f" ours {described(ours, count)}; py-amqp {described(theirs, count)}\n"
        )
    assert ours[0] * AT_LEAST_CHEAPER < theirs[0]


def publish(session: AmqpSession, wakeups: list[Wakeup]) -> None:
    waker, at = WakeSocket(), 0
    while at < len(wakeups) or session.waiting:
        batch = wakeups[at : at + min(500, session.room)]
        session.send(batch)
        at += len(batch)
        session.listen(waker, 0.0 if at < len(wakeups) and session.room else 1.0)


def publish_with_py_amqp(url: str, wakeups: list[Wakeup]) -> None:
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
        for number, wakeup in enumerate(wakeups, start=1):
            waiting.add(number)
            channel.basic_publish(
                message(wakeup, f"{number:036}", "here"),
                exchange="",
                routing_key=wakeup.broker_queue,
                mandatory=True,
            )
            while len(waiting) >= WINDOW:
                connection.drain_events(timeout=60)
        while waiting:
            connection.drain_events(timeout=60)


def measure(work: Callable[[], None]) -> tuple[float, float]:
    """Of this thread: seconds of CPU, and of the clock."""
    cpu, clock = time.thread_time(), time.monotonic()
    work()
    return time.thread_time() - cpu, time.monotonic() - clock


def described(seconds: tuple[float, float], count: int) -> str:
    return f"{seconds[0] / count * 1e6:.1f} µs of CPU each, {count / seconds[1]:,.0f} a second"
