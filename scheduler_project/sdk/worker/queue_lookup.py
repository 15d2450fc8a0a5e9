"""The lookup of broker queues: which of those that should bring wake-ups exist.

It runs on a thread, away from the event loop, and over a connection of its own: a consume on a missing queue would
close the channel of all the others.
"""

from __future__ import annotations

import threading
from typing import Any

from .wakeup_connection import wakeup_connection

CONNECT_TIMEOUT = 5.0


class QueueLookup(threading.Thread):
    """Has `found` and `connection`, or an `error`, once it has ended."""

    def __init__(self, app: Any, names: set[str], connect: bool, heartbeat: Any) -> None:
        super().__init__(daemon=True)
        self._app, self._names, self._connect, self._heartbeat = app, names, connect, heartbeat
        self.connection: Any = None
        self.found: set[str] = set()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with wakeup_connection(self._app, connect_timeout=CONNECT_TIMEOUT) as connection:
                self.found = existing_queues(connection, self._names)
            if self._connect:
                self.connection = wakeup_connection(
                    self._app, connect_timeout=CONNECT_TIMEOUT, heartbeat=self._heartbeat
                )
                self.connection.connect()
        except Exception as error:
            self.error = error


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
