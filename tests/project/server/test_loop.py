"""Share the connections of one socket among the loops of several processes."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from scheduler_project.server import loop as server_loop
from scheduler_project.server.loop import SharingLoop

PATIENCE_SECONDS = 30.0


class Accepting:
    """A loop that accepts from a listener, and runs only while a test waits for it."""

    def __init__(self, listener: socket.socket) -> None:
        self.loop = SharingLoop()
        self.transports: list[asyncio.BaseTransport] = []
        accepting = self

        class Connection(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepting.transports.append(transport)

        served = self.loop.create_server(Connection, sock=listener.dup(), ssl=None, backlog=10)
        self.server = self.loop.run_until_complete(served)

    def run(self, until: Callable[[], bool]) -> None:
        async def wait() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not until():
                    await asyncio.sleep(0.01)

        self.loop.run_until_complete(wait())

    def close(self) -> None:
        self.server.close()
        for transport in self.transports:
            transport.close()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def test_one_loop_leaves_the_next_connection_to_another(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_loop, "REST_SECONDS", 60)
    with ExitStack() as ended:
        # Both wait before the first loop begins, which would otherwise take one and leave the other by chance.
        for _ in range(2):
            ended.enter_context(socket.create_connection(listener.getsockname()))
        for _ in range(2):
            accepting = Accepting(listener)
            ended.callback(accepting.close)
            accepting.run(lambda: bool(accepting.transports))  # noqa: B023 - it is called here
            accepting.loop.run_until_complete(asyncio.sleep(0.05))
            assert len(accepting.transports) == 1


def test_a_loop_goes_on_accepting_after_its_rest(listener: socket.socket) -> None:
    accepting = Accepting(listener)
    with ExitStack() as ended:
        ended.callback(accepting.close)
        for _ in range(3):
            ended.enter_context(socket.create_connection(listener.getsockname()))
        accepting.run(lambda: len(accepting.transports) == 3)
