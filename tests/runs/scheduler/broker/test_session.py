"""What goes over one connection: frames in pieces, acks in any order, waits that end."""

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, cast
from unittest.mock import patch
from uuid import uuid4

import amqp
import pytest
from amqp.spec import Basic
from django.conf import settings
from kombu.utils.url import parse_url

from runs.scheduler.broker import connection
from runs.scheduler.broker import session as broker_session
from runs.scheduler.broker.config import Broker, why_away
from runs.scheduler.broker.connection import AmqpConnection
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.session import AmqpSession
from runs.scheduler.broker.transport import BrokerSilent
from runs.scheduler.broker.wake_socket import WakeSocket
from scheduler_project.sdk.transport.broker_tls import with_ca
from tests.support.certificates import OwnCA

CHANNEL = 3


def ack(number: int, multiple: bool = False, channel: int = CHANNEL) -> bytes:
    return struct.pack(">BHIHHQBB", 1, channel, 13, *Basic.Ack, number, multiple, 0xCE)


def heartbeat() -> bytes:
    return struct.pack(">BHIB", 8, 0, 0, 0xCE)


class Heard:
    """A link that is fed by hand, and what it made of it."""

    def __init__(self) -> None:
        self.link: Any = cast(Any, AmqpConnection())
        self.acks: list[tuple[int, bool]] = []
        self.frames: list[tuple[int, int, bytes]] = []
        self.link._on_inbound_frame = self.frames.append
        self.link.watch_acks(CHANNEL, lambda number, multiple: self.acks.append((number, multiple)))

    def feed(self, data: bytes) -> None:
        self.link._inbox += data
        self.link._handle()


@pytest.mark.parametrize("size", [1, 2, 7, 20, 21, 22, 1000])
def test_frames_are_understood_however_they_are_cut(size: int) -> None:
    heard = Heard()
    data = ack(1) + heartbeat() + ack(5, multiple=True) + ack(9, channel=CHANNEL + 1) + ack(6)
    for at in range(0, len(data), size):
        heard.feed(data[at : at + size])
    assert heard.acks == [(1, False), (5, True), (6, False)]
    # What is not an ack of ours is py-amqp's business.
    assert [(kind, channel) for kind, channel, _ in heard.frames] == [(8, 0), (1, CHANNEL + 1)]
    assert not heard.link._inbox


def test_what_a_frame_brings_about_may_read_on() -> None:
    heard = Heard()

    def read_on(frame: tuple[int, int, bytes]) -> None:
        heard.frames.append(frame)
        heard.link.blocking_read()

    heard.link._on_inbound_frame = read_on
    heard.feed(ack(1) + heartbeat() + ack(2))
    assert heard.acks == [(1, False), (2, False)]
    assert len(heard.frames) == 1


def test_a_frame_that_does_not_end_is_refused() -> None:
    with pytest.raises(amqp.UnexpectedFrame):
        Heard().feed(heartbeat()[:-1] + b"\x00")


@pytest.fixture
def session(broker_url: str) -> Iterator[AmqpSession]:
    with AmqpSession(Broker("", broker_url)) as session:
        yield session


@pytest.fixture
def queue() -> str:
    return f"{settings.QUEUE_PREFIX}.session.{uuid4().hex[:8]}.v1"


def numbers(session: AmqpSession) -> list[int]:
    return sorted(session.waiting)


def test_acks_come_single_and_multiple_in_any_order(session: AmqpSession) -> None:
    session.waiting = {number: Wakeup("q", "1:1") for number in range(1, 11)}
    session._sent = 10
    session._on_ack(7, False)
    session._on_ack(3, True)
    session._on_ack(2, True)
    session._on_ack(7, False)
    assert numbers(session) == [4, 5, 6, 8, 9, 10]
    session._on_nack(5, True)
    session._on_ack(10, True)
    assert (session.confirmed, session.nacked) == (8, 2)
    assert session.room == broker_session.WINDOW


def test_an_ack_of_many_looks_at_no_other(session: AmqpSession) -> None:
    """It was a scan of everything that waits."""

    class Counted(dict[int, Wakeup]):
        looked = 0

        def pop(self, *arguments: Any) -> Any:
            Counted.looked += 1
            return super().pop(*arguments)

        def __iter__(self) -> Iterator[int]:
            raise AssertionError("a scan")

    session.waiting = Counted({number: Wakeup("q", "1:1") for number in range(1, 5001)})
    for number in range(10, 5001, 10):
        session._on_ack(number, True)
    assert Counted.looked == 5000
    assert session.confirmed == 5000


def settle(session: AmqpSession) -> None:
    waker = WakeSocket()
    while session.waiting:
        session.listen(waker, 0.5)


def test_what_was_sent_is_confirmed(session: AmqpSession, queue: str) -> None:
    session.send(Wakeup(queue, "1:1") for number in range(1234))
    settle(session)
    assert (session.confirmed, session.nacked, session.take_returned()) == (1234, 0, [])


def test_a_wakeup_without_a_queue_comes_back_once(session: AmqpSession, queue: str) -> None:
    session.declared.add(queue)
    session.send([Wakeup(queue, "1:1")])
    settle(session)
    (returned,) = session.take_returned()
    assert returned == Wakeup(queue, "1:1", tries=1)
    session.declared.add(queue)
    session.send([returned])
    settle(session)
    assert session.take_returned() == []


def test_a_return_closes_nothing_and_the_queue_is_declared_next_time(
    session: AmqpSession, queue: str
) -> None:
    session.declared.add(queue)
    session.send([Wakeup(queue, "1:1")])
    settle(session)
    session.send(session.take_returned())
    settle(session)
    assert (session.confirmed, session.take_returned()) == (2, [])


def test_a_queue_that_the_broker_refuses_is_left_out_and_the_others_are_not(
    session: AmqpSession, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    refused = "amq.not-for-us"
    session.send([Wakeup(refused, "1:1"), Wakeup(queue, "1:1"), Wakeup(refused, "1:1")])
    settle(session)
    assert session.confirmed == 1
    assert caplog.text.count("refuses queue amq.not-for-us") == 1


def test_a_silent_broker_is_waited_for_only_so_long(
    session: AmqpSession, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.send([Wakeup(queue, "1:1")])
    settle(session)
    monkeypatch.setattr(broker_session, "SILENT_SECONDS", 0.2)
    waker = WakeSocket()
    with patch.object(AmqpConnection, "read_what_is_there"), pytest.raises(BrokerSilent):
        session.send([Wakeup(queue, "1:1")])
        for _ in range(1000):
            session.listen(waker, 0.5)


def test_what_py_amqp_waits_for_it_does_not_wait_for_ever(
    session: AmqpSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(TimeoutError):
        session._channel.wait(Basic.GetOk)


def test_a_wake_socket_is_cleared_at_once_however_often_it_was_woken() -> None:
    waker = WakeSocket()
    for _ in range(100_000):
        waker.wake()
    waker.clear()
    waker.clear()


class TlsInFront:
    """A broker behind TLS: decrypts, and hands on."""

    def __init__(self, broker: tuple[str, int], certificate: Path, key: Path) -> None:
        self._broker = broker
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._listener = context.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True)
        self.port = self._listener.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            server = socket.create_connection(self._broker)
            Thread(target=self._hand_on, args=(server, client), daemon=True).start()
            self._hand_on(client, server)

    def _hand_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


def test_a_broker_behind_tls_is_served_the_same_way(broker_url: str, queue: str, own_ca: OwnCA) -> None:
    url = tls_in_front(broker_url, own_ca)
    with AmqpSession(Broker("", with_ca(url, str(own_ca.ca)))) as session:
        assert isinstance(session._link.sock, ssl.SSLSocket)
        session.send(Wakeup(queue, "1:1") for number in range(3000))
        settle(session)
        assert session.confirmed == 3000


def test_a_broker_with_the_certificate_of_another_host_gets_nothing(broker_url: str, own_ca: OwnCA) -> None:
    url = tls_in_front(broker_url, own_ca.of_another_host("elsewhere.test"))
    with pytest.raises(ssl.SSLCertVerificationError) as refusal:
        AmqpSession(Broker("", with_ca(url, str(own_ca.ca))))
    reason = why_away(refusal.value)
    assert reason.startswith("the broker's certificate is not trusted: ")
    assert "BEATKEEPER_BROKER_CA_FILE" in reason


def tls_in_front(broker_url: str, server: OwnCA) -> str:
    address = parse_url(broker_url)
    proxy = TlsInFront((address["hostname"], address["port"] or 5672), server.certificate, server.key)
    return f"amqps://{address['userid']}:{address['password']}@localhost:{proxy.port}//"
