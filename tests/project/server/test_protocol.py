"""Bound what a client may do beside its body, with an application that does nothing behind the protocol."""

import socket
from contextlib import suppress
from typing import Any

import pytest
import uvicorn

from scheduler_project.server import protocol
from scheduler_project.server.protocol import MAX_AHEAD, MAX_HEAD
from tests.project.server.in_thread import address_of, served
from tests.support.waiting import wait_until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"


class Application:
    """Answer each request with `size` bytes once it has arrived."""

    def __init__(self, size: int = 2) -> None:
        self.size = size
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.headers = list(scope["headers"])
        length = str(self.size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": b"x" * self.size})


def connect(server: uvicorn.Server) -> socket.socket:
    return socket.create_connection(address_of(server), timeout=30)


def all_of(client: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    found = bytearray()
    with suppress(ConnectionResetError):
        while part := client.recv(65536):
            found += part
    return bytes(found)


def test_what_follows_a_body_is_no_header() -> None:
    """A proxy names the client's address in the head; a client could name another one here."""
    application = Application()
    with served(application) as server, connect(server) as client:
        client.sendall(CHUNKED + b"0\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    assert [value for name, value in application.headers if name == b"x-forwarded-for"] == [b"192.0.2.1"]


@pytest.mark.parametrize("line", [b"0\r\n" + b"X-Y: z\r\n" * 200_000, b"0\r\nX: " + b"y" * 1_600_000])
def test_what_follows_a_body_is_not_kept_without_end(line: bytes) -> None:
    with served(Application()) as server, connect(server) as client:
        client.sendall(CHUNKED)
        with suppress(ConnectionError):
            client.sendall(line)
        assert b" 200 " not in all_of(client)


def test_a_body_of_small_chunks_has_no_such_bound() -> None:
    with served(Application()) as server, connect(server) as client:
        client.sendall(CHUNKED + b"1\r\na\r\n" * MAX_HEAD + b"0\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_empty_line_does_not_keep_a_connection_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    with served(Application()) as server, connect(server) as client:
        client.sendall(GET)
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        client.sendall(b"\r\n")
        assert b" 408 " in all_of(client)


def test_few_requests_are_kept_ahead_of_their_answers() -> None:
    with served(Application()) as server:
        with connect(server) as client:
            client.sendall(GET * MAX_AHEAD)
            wait_until(lambda: server.server_state.total_requests == MAX_AHEAD, what="the answers")
        with connect(server) as client:
            client.sendall(GET * (MAX_AHEAD + 2))
            assert all_of(client) == b""


def test_a_refusal_is_not_taken_for_the_answer_to_an_earlier_request() -> None:
    with served(Application()) as server, connect(server) as client:
        client.sendall(GET + b"no HTTP\r\n\r\n")
        assert b" 400 " not in all_of(client)


def test_a_body_that_cannot_be_read_is_refused_in_words() -> None:
    with served(Application()) as server, connect(server) as client:
        client.sendall(CHUNKED)
        client.sendall(b"no length\r\n")
        assert b" 400 " in all_of(client)


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.1)
    application = Application(size=50_000_000)
    with served(application) as server, connect(server) as client:
        client.sendall(GET)
        wait_until(lambda: application.headers, what="the request")
        wait_until(lambda: not server.server_state.connections, what="the end of the connection")
        assert len(all_of(client)) < 50_000_000
