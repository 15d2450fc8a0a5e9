"""Hold requests to their deadlines, with the server in a thread of the test."""

import asyncio
import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from scheduler_project.server import handler, protocol, threads
from scheduler_project.server.handler import RequestHandler
from scheduler_project.server.threads import QueueFull, Threads
from tests.support.waiting import join, wait_until


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(handler, "BODY_SECONDS", 0.2)
    config = uvicorn.Config(
        RequestHandler(), port=0, http=protocol.HttpProtocol, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading_run(server)
    wait_until(lambda: server.started, what="the server")
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    join(thread)


def threading_run(server: uvicorn.Server) -> threading.Thread:
    thread = threading.Thread(target=server.run)
    thread.start()
    return thread


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


def test_no_more_requests_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADS", 1)
    monkeypatch.setattr(threads, "MAX_WAITING", 1)
    go_on = threading.Event()

    async def three() -> list[Any]:
        few = Threads("few")
        running = [asyncio.create_task(few.run(go_on.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await few.run(go_on.wait)
        go_on.set()
        answers = await asyncio.gather(*running)
        return [*answers, await few.run(int)]

    assert asyncio.run(three()) == [True, True, 0]
