"""Serve real sockets: slow clients hold no thread, and each limit has an answer."""

import http.client
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import pytest

from jobs.models import Role
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


def test_connections_do_not_use_up_the_open_files(database_url: str, processes: Processes) -> None:
    few, port = 128, free_port()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        serve(processes, port, {"DATABASE_URL": database_url})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with ExitStack() as slow:
        hold(slow, port, HALF_OPEN, 2 * few)
        assert get(port, "/healthz") == HTTPStatus.OK


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
    assert KEEP_ALIVE_SECONDS > 60
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.connect()
    own = connection.sock
    connection.request("GET", "/health/live")
    assert connection.getresponse().read()
    # Unless it is told otherwise, uvicorn closes it after 5 s.
    time.sleep(6)
    connection.request("GET", "/health/live")
    assert connection.getresponse().read() and connection.sock is own


def test_a_body_in_chunks_is_read(port: int, key: str) -> None:
    body = b'{"no_such_field": 5}'
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nConnection: close\r\n"
    head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    status, _, problem = send(port, head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert status == HTTPStatus.BAD_REQUEST
    assert "no_such_field" in {error["field"] for error in problem["errors"]}


def upload_head(key: str) -> bytes:
    """Announce a log of 10 MB, whose client waits for permission to send it."""
    lines = [
        f"PUT /api/v1/worker/logs/{uuid4()}/1?incarnation={uuid4()} HTTP/1.1",
        *("Host: localhost", f"Authorization: Bearer {key}", "Content-Type: application/gzip"),
        *("Content-Length: 10000000", "Expect: 100-continue"),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_an_upload_with_a_wrong_key_is_refused_before_its_body_is_read(port: int, key: str) -> None:
    """Neither one byte of the body is sent, nor the permission to send it; an operator's key is as wrong as none."""
    for wrong, status in (("bk_wrong", b"401"), (key, b"403")):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(upload_head(wrong))
            answer = b"".join(iter(lambda client=client: client.recv(4096), b""))  # type: ignore[misc]
        assert answer.startswith(b"HTTP/1.1 " + status), answer
        assert b"connection: close" in answer.lower()


def test_an_upload_with_a_workers_key_is_read(port: int) -> None:
    pool = make_pool()
    _, key = make_key(make_tenant(), Role.WORKER, pool=pool)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        client.sendall(upload_head(key))
        assert client.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"x" * 10_000_000)
        response = http.client.HTTPResponse(client)
        response.begin()
        problem = json.loads(response.read())
    assert (response.status, problem["detail"]) == (HTTPStatus.BAD_REQUEST, "is no gzip member"), problem


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
