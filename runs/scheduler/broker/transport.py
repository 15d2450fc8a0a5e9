"""The interface to brokers: what dispatch needs of publishers, and what a publisher needs of a connection.

A wake-up says that a queue has work. Losing or doubling one costs time, never truth, so no method waits for a broker
and none reports success. Another kind of broker is another `BrokerSession`, entered in `SESSIONS` of `publisher.py` by
the scheme of its URLs.
"""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.wake_socket import WakeSocket


class BrokerSilent(Exception):
    """The broker takes messages and confirms none."""


class WakeupTransport(Protocol):
    """What the dispatch loop uses. Brokers go by the name that pools call them; no call blocks."""

    def notice(self, broker: str) -> str:
        """Return the reason why a broker sends nothing at present, for the queues it serves; empty if it does."""

    def declare(self, broker: str, queues: Iterable[str]) -> None:
        """Add broker queues that must exist, now and after each reconnect."""

    def declare_only(self, queues: Mapping[str, Iterable[str]]) -> None:
        """Replace the broker queues that must exist, by broker; none is deleted."""

    def offer(self, broker: str, wakeups: Iterable[Wakeup]) -> None:
        """Take wake-ups to send; what does not fit is dropped."""


class BrokerSession(AbstractContextManager["BrokerSession"], Protocol):
    """One connection to one broker, used by one thread. Any error ends it, and the publisher opens another."""

    # Since the publisher last reset them.
    confirmed: int
    nacked: int
    # The broker takes nothing at present, and has said so.
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
