"""Serve real sockets: slow clients hold no thread, and each limit has an answer."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any

import pytest

from scheduler_project.management.commands.serve import KEEP_ALIVE_SECONDS
from scheduler_project.server.handler import MAX_ADDRESS
from scheduler_project.server.threads import MAX_WAITING, THREADS
from tests.support.factories import make_key, make_pool, make_tenant
from tests.support.ports import free_port
from tests.support.processes import Processes
from tests.support.servers.api import serve

pytestmark = pytest.mark.django_db(transaction=True)

HALF_OPEN = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
SLOW_BODY = b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
# More than all threads and all places before them.
MANY = 2 * (THREADS + MAX_WAITING)


@pytest.fixture
def port(database_url: str, processes: Processes) -> Iterator[int]:
    port = free_port()
    server = serve(processes, port, {"DATABASE_URL": database_url})
    yield port
    server.terminate()


@pytest.fixture
def key() -> str:
    make_pool(slug="default")
    return make_key(make_tenant())[1]


def get(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def send(port: int, request: bytes) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Send bytes as they are, and read the answer up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(request)
        response = http.client.HTTPResponse(client)
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, json.loads(response.read())


def hold(stack: ExitStack, port: int, request: bytes, count: int) -> None:
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        client.sendall(request)


def test_slow_clients_stop_nobody(port: int) -> None:
    with ExitStack() as slow:
        hold(slow, port, HALF_OPEN, MANY)
        hold(slow, port, SLOW_BODY, MANY)
        for path in ("/healthz", "/health/live", "/api/v1/worker/register", "/api/v1/jobs"):
            assert get(port, path) in (
                HTTPStatus.OK,
                HTTPStatus.UNAUTHORIZED,
                HTTPStatus.METHOD_NOT_ALLOWED,
            )


@pytest.mark.chaos
def test_slow_clients_of_a_minute_delay_nobody(port: int) -> None:
    """Both deadlines pass meanwhile, and the clients come again."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with ExitStack() as slow:
            hold(slow, port, HALF_OPEN, 16)
            hold(slow, port, SLOW_BODY, 16)
            for _ in range(100):
                assert get(port, "/health/ready") == HTTPStatus.OK
                time.sleep(0.3)


def test_an_idle_connection_is_kept_longer_than_load_balancers_keep_it(port: int) -> None:
    """A client that polls every few seconds never sends into a connection that was just closed."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    own = connection.sock
    for _ in range(3):
        connection.request("GET", "/health/live")
        assert connection.getresponse().read()
        time.sleep(2.2)
        assert connection.sock is own
    assert KEEP_ALIVE_SECONDS > 60


def test_a_body_in_chunks_is_read(port: int, key: str) -> None:
    body = b'{"schedule": 5}'
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _, problem = send(port, head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert status == HTTPStatus.BAD_REQUEST
    assert problem["code"] != "malformed"


def test_a_body_too_long_is_refused_before_it_was_read(port: int) -> None:
    """The connection says that it closes: a client would lose its next request in it."""
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n"
    status, headers, problem = send(port, head + b" " * 1_100_000)
    assert (status, headers["connection"]) == (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "close")
    assert problem["code"] == "body_too_large" and "1048576" in problem["detail"]


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (f"GET /{'a' * MAX_ADDRESS} HTTP/1.1\r\nHost: localhost\r\n\r\n", 414, "address_too_long"),
        (f"GET /?{'a' * 100_000} HTTP/1.1\r\nHost: localhost\r\n", 431, "head_too_large"),
        ("GET / HTTP/1.1\r\n" + "X: " + "a" * 1_000_000, 431, "head_too_large"),
        ("not http at all\r\n\r\n", 400, "malformed"),
    ],
)
def test_what_cannot_be_read_gets_a_problem_and_no_page(
    port: int, request_: str, status: int, code: str
) -> None:
    got, headers, problem = send(port, request_.encode())
    assert (got, problem["status"], problem["code"]) == (status, status, code)
    assert headers["content-type"] == "application/problem+json"
    assert headers["connection"] == "close"
    assert get(port, "/healthz") == HTTPStatus.OK
