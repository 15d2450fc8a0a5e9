"""py-amqp's connection, for many confirmations: it reads all that has come at once and never waits without an end."""

import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import amqp
from amqp.spec import Basic

from runs.scheduler.broker.transport import BrokerSilent
from scheduler_project.sdk.transport.broker_tls import CheckedConnection

TIMEOUT_SECONDS = 5.0
HEARTBEAT_SECONDS = 10
CHUNK = 65_536
FRAME_END = 0xCE
ACK_FRAME = 21


class AmqpConnection(amqp.Connection):
    """Reads whole chunks and takes acks out of them without py-amqp's dispatch, which costs more than sending."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._inbox = bytearray()
        self._ack_head = b""
        self._on_ack: Callable[[int, bool], None] = lambda _tag, _multiple: None
        super().__init__(*arguments, **options)

    def watch_acks(self, channel: int, on_ack: Callable[[int, bool], None]) -> None:
        self._on_ack = on_ack
        self._ack_head = struct.pack(">BHIHH", 1, channel, ACK_FRAME - 8, *Basic.Ack)

    def blocking_read(self, timeout: float | None = None) -> Any:
        """Replace the read that all of py-amqp's own waits end in."""
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
        """Return whether TLS has decrypted more than was read, which a poll of the socket does not see."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def write(self, data: bytes) -> None:
        """Write, and take a broker that reads nothing for too long for gone."""
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
        """Handle all whole frames; handling one may read on, so each is taken out before."""
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
    transport.Connection = AmqpConnection
    return transport.establish_connection()
