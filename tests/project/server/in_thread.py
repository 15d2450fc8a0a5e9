"""Serve an application in a thread of the test, by the protocol that `manage.py serve` uses."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from scheduler_project.management.commands.serve import LOOP
from scheduler_project.server.protocol import HttpProtocol
from tests.support.waiting import join, wait_until


@contextmanager
def served(application: Any) -> Iterator[uvicorn.Server]:
    config = uvicorn.Config(
        application, port=0, http=HttpProtocol, loop=LOOP, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([config.bind_socket()],))
    thread.start()
    wait_until(lambda: server.started, what="the server")
    try:
        yield server
    finally:
        server.should_exit = server.force_exit = True
        join(thread)


def address_of(server: uvicorn.Server) -> tuple[str, int]:
    host, port = server.servers[0].sockets[0].getsockname()
    return host, port
