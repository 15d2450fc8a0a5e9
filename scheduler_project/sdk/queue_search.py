"""Which of the queues that should bring permits exist: asked on a thread, away from the event loop.

A consume on a missing queue would close the channel of all the others, so it is asked over a connection of its own.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from .permit_connection import permit_connection

CONNECT_TIMEOUT = 5.0


@dataclass
class Search:
    """`found` and `connection`, or an `error`, once it is `done`."""

    app: Any
    names: set[str]
    want_connection: bool
    heartbeat: Any
    connection: Any = None
    found: set[str] = field(default_factory=set)
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._find, daemon=True).start()

    def _find(self) -> None:
        try:
            with permit_connection(self.app, connect_timeout=CONNECT_TIMEOUT) as connection:
                self.found = existing(connection, self.names)
            if self.want_connection:
                self.connection = permit_connection(
                    self.app, connect_timeout=CONNECT_TIMEOUT, heartbeat=self.heartbeat
                )
                self.connection.connect()
        except Exception as error:
            self.error = error
        self.done.set()


def existing(connection: Any, names: set[str]) -> set[str]:
    found = set()
    channel = connection.channel()
    for name in sorted(names):
        try:
            channel.queue_declare(queue=name, passive=True)
        except connection.channel_errors:
            channel = connection.channel()
        else:
            found.add(name)
    return found
