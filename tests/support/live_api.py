"""The API over real TLS in a thread of the test, and a wire to it that can be cut at the worst moment."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.core.wsgi import get_wsgi_application

from tests.support.certificates import OwnCA


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Nobody reads along."""


class TlsServer(ThreadedWSGIServer):
    daemon_threads = True

    def __init__(self, ca: OwnCA) -> None:
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(ca.certificate, ca.key)
        super().__init__(("127.0.0.1", 0), QuietHandler, allow_reuse_address=False)

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the handshake in the thread, so that a client that breaks it off delays no other."""
        with suppress(OSError), self.tls.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a client that is gone: that is what tests are about."""


@contextmanager
def live_api(ca: OwnCA) -> Iterator[int]:
    """Yield the port that the API listens on."""
    server = TlsServer(ca)
    server.set_app(get_wsgi_application())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Wire:
    """Carries bytes to a server and back, and can lose what comes back."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lose_next = threading.Event()
        self.lost = threading.Event()
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_the_next_answer(self) -> None:
        """Lose the answer to the next request, which itself arrives."""
        self.lost.clear()
        self._lose_next.set()

    def hang_up(self) -> None:
        """As a server does with connections that were idle for long."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open = []

    def close(self) -> None:
        self._listener.close()
        self.hang_up()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                for source, target, back in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._carry, args=(source, target, back), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while received := source.recv(65536):
                if back and self._lose_next.is_set():
                    self._lose_next.clear()
                    self.lost.set()
                    break
                target.sendall(received)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
