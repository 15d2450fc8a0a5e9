"""The publisher needs of a broker what `BrokerSession` names, and nothing of AMQP."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import pytest

from runs.reasons import Reason
from runs.scheduler.broker import publisher
from runs.scheduler.broker.config import Broker
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.publisher import Publishers
from runs.scheduler.broker.session import AmqpSession
from runs.scheduler.broker.transport import BrokerSession
from runs.scheduler.broker.wake_socket import WakeSocket
from tests.support.waiting import wait_until


class ListSession:
    """A broker in memory that confirms at once, returns a first wake-up, and breaks when it is told to."""

    made: list["ListSession"]
    fails = False

    def __init__(self, broker: Broker, attempt: int) -> None:
        if self.fails:
            raise ConnectionRefusedError
        self.confirmed = self.nacked = 0
        self.blocked = self.closed = False
        self.declared: set[str] = set()
        self.sent: list[Wakeup] = []
        self.returned: list[Wakeup] = []
        self.made.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed = True

    @property
    def room(self) -> int:
        return 10

    def declare(self, queues: Iterable[str]) -> None:
        self.declared |= set(queues)

    def send(self, wakeups: Iterable[Wakeup]) -> None:
        for wakeup in wakeups:
            assert wakeup.broker_queue in self.declared
            self.sent.append(wakeup)
            self.confirmed += 1
            if wakeup.tries == 0 and len(self.sent) == 1:
                self.returned.append(wakeup._replace(tries=1))

    def listen(self, waker: WakeSocket, seconds: float) -> None:
        if self.fails:
            raise ConnectionResetError
        if seconds:
            waker.clear()

    def take_returned(self) -> list[Wakeup]:
        returned, self.returned = self.returned, []
        return returned


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[ListSession]:
    made: list[ListSession] = []
    monkeypatch.setattr(ListSession, "made", made, raising=False)
    monkeypatch.setitem(publisher.SESSIONS, "list", ListSession)
    return made


def test_a_session_is_chosen_by_the_scheme_of_the_url(
    sessions: list[ListSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publisher.open_session(Broker("", "list://"), 0) is sessions[0]
    amqp: list[Any] = []
    monkeypatch.setattr(publisher, "AmqpSession", lambda *arguments: amqp.append(arguments))
    publisher.open_session(Broker("", "amqps://one;pyamqp://two"), 1)
    assert len(amqp) == len(sessions) == 1


def test_wakeups_reach_another_kind_of_broker_and_its_failure_is_a_notice(
    sessions: list[ListSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    publishers = Publishers({"": Broker("", "list://")})
    publishers.start()
    wakeups = [Wakeup("q.one", "1:1"), Wakeup("q.two", "1:2")]
    try:
        publishers.declare_only({"": ["q.one"]})
        publishers.declare("", ["q.two"])
        publishers.offer("", wakeups)
        wait_until(lambda: len(sessions) == 1 and len(sessions[0].sent) == 3, 10, "three, one of them again")
        assert sorted(sessions[0].sent) == sorted([*wakeups, wakeups[0]._replace(tries=1)])
        assert publishers.notice("") == "" and publishers.by_broker[""].confirmed == 3
        monkeypatch.setattr(ListSession, "fails", True)
        wait_until(lambda: publishers.notice("") == Reason.BROKER_AWAY, 10, "the breaker to open")
        assert sessions[0].closed
    finally:
        publishers.stop()


def test_the_amqp_session_has_the_whole_interface() -> None:
    missing = [
        name for name in dir(BrokerSession) if not name.startswith("_") and not hasattr(AmqpSession, name)
    ]
    assert not missing
