"""Share the connections of one socket among the loops of several processes."""

import asyncio
import socket
import threading
from collections import Counter
from contextlib import ExitStack

import pytest

from scheduler_project.server import loop as server_loop
from scheduler_project.server.loop import SharingLoop
from tests.support.waiting import join, wait_until


def test_one_loop_leaves_the_next_connection_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_loop, "REST_SECONDS", 60)
    accepted: Counter[str] = Counter()
    with ExitStack() as ended, socket.create_server(("127.0.0.1", 0)) as listener:
        # Both wait before the first loop begins, which would otherwise take one and leave the other by chance.
        for _ in range(2):
            ended.enter_context(socket.create_connection(listener.getsockname()))
        ended.callback(serve("first", listener, accepted))
        wait_until(lambda: accepted["first"], what="a connection")
        ended.callback(serve("second", listener, accepted))
        wait_until(lambda: accepted["second"], what="a connection")
    assert accepted == {"first": 1, "second": 1}


def test_a_loop_goes_on_accepting_after_its_rest() -> None:
    accepted: Counter[str] = Counter()
    with ExitStack() as ended, socket.create_server(("127.0.0.1", 0)) as listener:
        ended.callback(serve("alone", listener, accepted))
        for _ in range(3):
            ended.enter_context(socket.create_connection(listener.getsockname()))
        wait_until(lambda: accepted["alone"] == 3, what="all connections")


def serve(name: str, listener: socket.socket, accepted: Counter[str]) -> "StopLoop":
    """Accept from a listener that others share, in a thread."""
    loop = SharingLoop()

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted[name] += 1

    loop.run_until_complete(loop.create_server(Connection, sock=listener.dup(), ssl=None, backlog=10))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    return StopLoop(loop, thread)


class StopLoop:
    def __init__(self, loop: SharingLoop, thread: threading.Thread) -> None:
        self.loop = loop
        self.thread = thread

    def __call__(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        join(self.thread)
        self.loop.close()
