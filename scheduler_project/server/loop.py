"""Run the server's event loop so that the processes which share a socket share its connections."""

import asyncio
import socket
from ssl import SSLContext
from typing import Any

import uvloop

REST_SECONDS = 0.002
# When no connection can be accepted, because too many files are open.
RETRY_SECONDS = 1.0


class Listener:
    """Accept one connection at a time, and rest before the next.

    asyncio and uvloop accept all that wait. A pool of clients opens its connections within a millisecond, so the
    process that is awake first would get them all, and the clients would wait for one core while the others are idle.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol: Any, listener: socket.socket, tls: SSLContext | None
    ) -> None:
        self.sockets = (listener,)
        self._loop = loop
        self._protocol = protocol
        self._listener = listener
        self._tls = tls
        self._opening: set[asyncio.Task[Any]] = set()
        self._rest: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        rest = REST_SECONDS
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # Another process has it, or its client is gone.
        except OSError:
            rest = RETRY_SECONDS
        else:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        self._loop.remove_reader(self._listener.fileno())
        self._rest = self._loop.call_later(rest, self._listen)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection, ssl=self._tls)
        except OSError:
            connection.close()  # The client has gone, or its TLS is not ours.

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        if self._listener.fileno() != -1:
            self._loop.remove_reader(self._listener.fileno())

    async def wait_closed(self) -> None:
        """Return at once: the connections are closed by the server."""


class SharingLoop(uvloop.Loop):
    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """Listen on a socket that processes share; one that is alone brings an address instead."""
        shared = kwargs.get("sock")
        if shared is None:
            return await super().create_server(protocol_factory, *args, **kwargs)
        shared.listen(kwargs["backlog"])
        return Listener(self, protocol_factory, shared, kwargs["ssl"])
