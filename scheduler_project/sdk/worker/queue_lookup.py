"""The lookup of broker queues: which of those that should bring wake-ups exist.

It runs on a thread, away from the event loop, and over a connection of its own: a consume on a missing queue would
close the channel of all the others.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from .wakeup_connection import wakeup_connection

CONNECT_TIMEOUT = 5.0


@dataclass
class QueueLookup:
    """Has `found` and `connection`, or an `error`, once it is `done`."""

    app: Any
    names: set[str]
    connect: bool
    heartbeat: Any
    connection: Any = None
    found: set[str] = field(default_factory=set)
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._look_up, daemon=True).start()

    def _look_up(self) -> None:
        try:
            with wakeup_connection(self.app, connect_timeout=CONNECT_TIMEOUT) as connection:
                self.found = existing_queues(connection, self.names)
            if self.connect:
                self.connection = wakeup_connection(
                    self.app, connect_timeout=CONNECT_TIMEOUT, heartbeat=self.heartbeat
                )
                self.connection.connect()
        except Exception as error:
            self.error = error
        self.done.set()


def existing_queues(connection: Any, names: set[str]) -> set[str]:
    found = set()
    channel = connection.channel()
    for name in sorted(names):
        try:
            channel.queue_declare(queue=name, passive=True)
        except connection.channel_errors:
            # The broker closed the channel with its answer.
            channel = connection.channel()
        else:
            found.add(name)
    return found
