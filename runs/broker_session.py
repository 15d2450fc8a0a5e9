"""One connection to a broker: a channel for declaring, which a refusal closes, and one with pipelined confirms.

Every wait has an end, also the ones inside py-amqp. Whatever goes wrong is raised: the publisher begins anew.
"""

import logging
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import amqp
from amqp.spec import Basic

from runs.brokers import DEAD_MESSAGES, DEAD_MESSAGES_KEPT, REJECTED_ALONE, Broker
from runs.permits import Permit, Press
from scheduler_project.sdk.broker_tls import CheckedConnection

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
HEARTBEAT_SECONDS = 10
WINDOW = 5000
PERMITS_IN_A_WRITE = 100
# Confirmations are gathered for so long: reading each as it comes would cost more than sending.
GATHER_SECONDS = 0.002
TICK_SECONDS = 1.0
REFUSED_SECONDS = 30.0
CHUNK = 65_536
FRAME_END = 0xCE
ACK_FRAME = 21


class BrokerSilent(Exception):
    """The broker takes messages and confirms none."""


class Bell:
    """Wakes a thread that waits for a socket."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def fileno(self) -> int:
        return self._here.fileno()

    def ring(self) -> None:
        try:
            self._there.send(b"!")
        except BlockingIOError:  # it rings already
            pass

    def quiet(self) -> None:
        try:
            self._here.recv(CHUNK)
        except BlockingIOError:
            pass


class Link(amqp.Connection):
    """py-amqp's connection; but it reads all that has come at once, knows acks by sight, and never waits for ever."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inbox = bytearray()
        self._ack_head = b""
        self._on_ack: Callable[[int, bool], None] = lambda _tag, _multiple: None
        super().__init__(*arguments, **options)

    def watch_acks(self, channel: int, on_ack: Callable[[int, bool], None]) -> None:
        self._on_ack = on_ack
        self._ack_head = struct.pack(">BHIHH", 1, channel, ACK_FRAME - 8, *Basic.Ack)

    def blocking_read(self, timeout: float | None = None) -> Any:
        """What py-amqp's own waits come to."""
        if not self._handle():
            self._receive(TIMEOUT_SECONDS if timeout is None else timeout)
            self._handle()
        return True

    def read_what_is_there(self) -> None:
        try:
            self._receive(0.0)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return
        self._handle()

    @property
    def has_read_ahead(self) -> bool:
        """TLS decrypts more than was asked for, and a poll of the socket does not see it."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def write(self, data: bytes) -> None:
        """A broker that reads nothing for so long is as good as gone."""
        try:
            self.transport.write(data)
        except TimeoutError:
            raise BrokerSilent(BrokerSilent.__doc__) from None
        self.bytes_sent += 1

    def _receive(self, seconds: float) -> None:
        peer: socket.socket = self.transport.sock
        peer.settimeout(seconds)
        try:
            received = peer.recv(CHUNK)
        finally:
            peer.settimeout(TIMEOUT_SECONDS)
        if not received:
            raise ConnectionResetError("the broker closed the connection")
        self._inbox += received

    def _handle(self) -> bool:
        """All whole frames. What a frame brings about may read on, so each is taken out before it is handled."""
        inbox, head, at, handled = self._inbox, self._ack_head, 0, False
        while len(inbox) - at >= 8:
            if head and inbox.startswith(head, at):
                if len(inbox) - at < ACK_FRAME:
                    break
                tag, multiple = struct.unpack_from(">Q?", inbox, at + len(head))
                at += ACK_FRAME
                self._on_ack(tag, multiple)
            else:
                kind, channel, size = struct.unpack_from(">BHI", inbox, at)
                end = at + 7 + size
                if len(inbox) <= end:
                    break
                if inbox[end] != FRAME_END:
                    raise amqp.UnexpectedFrame("a frame without an end")
                payload = bytes(inbox[at + 7 : end])
                del inbox[: end + 1]
                at = 0
                self.on_inbound_frame((kind, channel, payload))
            handled = True
        del inbox[:at]
        self.bytes_recv += handled
        return handled


def connect(url: str) -> Any:
    described = CheckedConnection(url, connect_timeout=TIMEOUT_SECONDS, heartbeat=HEARTBEAT_SECONDS)
    transport: Any = described.transport
    transport.Connection = Link
    return transport.establish_connection()


class Session:
    def __init__(self, broker: Broker, attempt: int = 0) -> None:
        self.broker = broker
        self.declared: set[str] = set()
        self.confirmed = 0
        self.nacked = 0
        # While an alarm is on, the broker reads nothing more from us and says so.
        self.blocked = False
        self._refused: dict[str, float] = {}
        self._waiting: dict[int, Permit] = {}
        self._oldest = 1
        self._sent = 0
        self._progress_at = self._tick_at = time.monotonic()
        self._returned: list[Permit] = []
        self._link = connect(broker.address(attempt))
        self._link.on_blocked, self._link.on_unblocked = self._on_blocked, self._on_unblocked
        self._channel = self._link.channel()
        self._channel.confirm_select()
        self._link.watch_acks(self._channel.channel_id, self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._press = Press(self._channel.channel_id)
        self._declare_dead_messages()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self.blocked:
                self._link.close()
            self._link.collect()
        except Exception:  # a broken connection cannot even be closed
            logger.debug("the connection was gone already")

    @property
    def room(self) -> int:
        return 0 if self.blocked else WINDOW - len(self._waiting)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _declare_dead_messages(self) -> None:
        """Before the first queue that names the exchange. Without it what is rejected is dropped."""
        channel = self._link.channel()
        try:
            channel.exchange_declare(DEAD_MESSAGES, "headers", durable=True, auto_delete=False)
            channel.queue_declare(
                DEAD_MESSAGES, durable=True, auto_delete=False, arguments=DEAD_MESSAGES_KEPT
            )
            channel.queue_bind(DEAD_MESSAGES, DEAD_MESSAGES, arguments=REJECTED_ALONE)
            channel.close()
        except amqp.ChannelError as error:
            logger.error(
                "%s refuses %s; what no worker can read is dropped there: %s",
                self.broker,
                DEAD_MESSAGES,
                error,
            )

    def declare(self, queues: Iterable[str]) -> None:
        for queue in sorted(queues):
            channel = self._link.channel()
            try:
                channel.queue_declare(queue, durable=True, auto_delete=False, arguments=self.broker.arguments)
                channel.close()
            except amqp.PreconditionFailed as error:
                logger.error("queue %s exists with other arguments and is used as it is: %s", queue, error)
            except amqp.ChannelError as error:
                logger.error("%s refuses queue %s, which has no permits now: %s", self.broker, queue, error)
                self._refused[queue] = time.monotonic() + REFUSED_SECONDS
                continue
            self._refused.pop(queue, None)
            self.declared.add(queue)

    def send(self, permits: Iterable[Permit]) -> None:
        if not self._waiting:
            self._progress_at = time.monotonic()
        printed: list[bytes] = []
        for permit in permits:
            if permit.queue not in self.declared and not self._has_queue(permit.queue):
                continue
            self._sent += 1
            self._waiting[self._sent] = permit
            printed.append(self._press.print(permit, self._sent))
            if len(printed) >= PERMITS_IN_A_WRITE:
                self._link.write(b"".join(printed))
                printed.clear()
        if printed:
            self._link.write(b"".join(printed))

    def _has_queue(self, queue: str) -> bool:
        if time.monotonic() >= self._refused.get(queue, 0.0):
            self.declare([queue])
        return queue in self.declared

    def listen(self, bell: Bell, seconds: float) -> None:
        """Takes what the broker has to say, after a wait for it or for the bell."""
        if seconds and not self._link.has_read_ahead:
            gathering = bool(self._waiting) and not self.blocked
            poll = select.poll()
            poll.register(bell, select.POLLIN)
            if not gathering:
                poll.register(self._link.sock, select.POLLIN)
            poll.poll(1000 * (min(seconds, GATHER_SECONDS) if gathering else seconds))
        bell.quiet()
        self._link.read_what_is_there()
        now = time.monotonic()
        if now - self._tick_at > TICK_SECONDS:
            self._tick_at = now
            self._link.heartbeat_tick()
        if self._waiting and not self.blocked and now - self._progress_at > TIMEOUT_SECONDS:
            raise BrokerSilent(BrokerSilent.__doc__)

    def take_returned(self) -> list[Permit]:
        """Permits whose queue is gone, for one more try after it was declared again."""
        returned, self._returned = self._returned, []
        return returned

    def _on_ack(self, number: int, multiple: bool) -> None:
        self.confirmed += self._settle(number, multiple)

    def _on_nack(self, number: int, multiple: bool) -> None:
        """The broker could not take it; the run is served by a heartbeat."""
        self.nacked += self._settle(number, multiple)

    def _settle(self, number: int, multiple: bool) -> int:
        self._progress_at = time.monotonic()
        waiting = self._waiting
        if not multiple:
            return waiting.pop(number, None) is not None
        settled = 0
        while self._oldest <= number:
            settled += waiting.pop(self._oldest, None) is not None
            self._oldest += 1
        return settled

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        """No such queue any more. It is confirmed all the same, so this is the only sign of it."""
        self.declared.discard(routing_key)
        permit = self._waiting.get(self._press.number_of(message.properties["correlation_id"]))
        if permit is not None and permit.tries == 0:
            self._returned.append(permit._replace(tries=1))

    def _on_blocked(self, reason: str) -> None:
        logger.warning("%s takes nothing at present: %s", self.broker, reason)
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False
        self._progress_at = time.monotonic()
