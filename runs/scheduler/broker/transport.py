"""The interface to brokers: what a publisher needs of a connection.

A wake-up says that there is work. Losing or doubling one costs time, never truth, so no method waits for a broker
and none reports success. Another kind of broker is another `BrokerSession`, entered in `SESSIONS` of `publisher.py` by
the scheme of its URLs.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.wake_socket import WakeSocket


class BrokerSilent(Exception):
    """The broker takes messages and confirms none."""


class BrokerSession(AbstractContextManager["BrokerSession"], Protocol):
    """One connection to one broker, used by one thread. Any error ends it, and the publisher opens another."""

    # Since the publisher last reset them.
    confirmed: int
    nacked: int
    # The broker takes nothing at present, and has reported it.
    blocked: bool

    @property
    def room(self) -> int:
        """How many wake-ups may be sent before the next confirmation."""

    def declare(self, queues: Iterable[str]) -> None:
        """Create queues that do not exist; a queue that the broker refuses gets no wake-ups for a while."""

    def send(self, wakeups: Iterable[Wakeup]) -> None: ...

    def listen(self, waker: WakeSocket, seconds: float) -> None:
        """Read what the broker says, after waiting for it or for the waker at most so long."""

    def take_returned(self) -> list[Wakeup]:
        """Return, once each, wake-ups whose queue is gone, for another try after it was declared again."""
