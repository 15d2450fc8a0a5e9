"""Hold requests to their deadlines, with the server in a thread of the test."""

import http.client
import socket
from collections.abc import Iterator

import pytest

from scheduler_project.server import handler, protocol
from scheduler_project.server.handler import RequestHandler
from tests.project.server.in_thread import address_of, served


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(handler, "BODY_SECONDS", 0.2)
    with served(RequestHandler()) as server:
        yield address_of(server)[1]


def response_to(port: int, request: bytes) -> http.client.HTTPResponse:
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(request)
    response = http.client.HTTPResponse(client)
    response.begin()
    return response


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"GET /health/live HTTP/1.1\r\nHost: x\r\n",
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n1",
    ],
)
def test_a_request_that_does_not_arrive_is_given_up(port: int, request_: bytes) -> None:
    response = response_to(port, request_)
    assert (response.status, response.headers["Connection"]) == (408, "close")
    assert b"too_slow" in response.read()


def test_the_second_request_of_a_connection_has_a_deadline_too(port: int) -> None:
    whole = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(whole)
    assert b"200 OK" in client.recv(4096)
    client.sendall(b"GET /")
    assert b"408" in client.recv(4096)
