"""Make the frames of a wake-up: once per broker queue and queue; then only its id is put in.

A wake-up is what a stock Celery worker accepts as a task of protocol 2 (a missing key would crash it), so any consumer
and every tool of the broker can read one. py-amqp itself writes the pattern.
"""

import json
import os
import socket
from typing import Any, NamedTuple
from uuid import uuid4

import amqp
from amqp.method_framing import frame_writer
from amqp.serialization import dumps
from amqp.spec import Basic

TASK = "beatkeeper.run"
WAKEUP_VERSION = 1
BODY = json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
ID_LENGTH = 36
# The last 12 digits of a wake-up's id are its number in its session.
NUMBER_DIGITS = 12
PLACE = "?" * ID_LENGTH
MAX_PATTERNS = 20_000
# Nothing that fits into a wake-up comes near it.
FRAME_MAX = 131_072


class Wakeup(NamedTuple):
    broker_queue: str
    queue: str
    tries: int = 0


class MessageTemplate:
    """The wake-ups of one session, on one channel."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._patterns: dict[Wakeup, list[bytes]] = {}
        self._series = str(uuid4())[:-NUMBER_DIGITS].encode()
        self._origin = f"{os.getpid()}@{socket.gethostname()}"

    def frames(self, wakeup: Wakeup, number: int) -> bytes:
        pattern = self._patterns.get(wakeup)
        if pattern is None:
            if len(self._patterns) >= MAX_PATTERNS:
                self._patterns.clear()
            frames = publication(wakeup, PLACE, self._channel, self._origin)
            pattern = self._patterns[wakeup] = frames.split(PLACE.encode())
        return (b"%b%012x" % (self._series, number)).join(pattern)

    def number_of(self, identity: str) -> int:
        """Return the number of a wake-up by the id that came back; 0 if it is none of this session."""
        series, number = identity[:-NUMBER_DIGITS], identity[-NUMBER_DIGITS:]
        return int(number, 16) if series.encode() == self._series else 0


class FrameBuffer:
    """Keeps what py-amqp writes; stands in for its connection and its transport."""

    frame_max = FRAME_MAX
    bytes_sent = 0

    def __init__(self) -> None:
        self.written = b""

    def write(self, frames: memoryview) -> None:
        self.written += bytes(frames)


def publication(wakeup: Wakeup, identity: str, channel: int, origin: str) -> bytes:
    """Return the frames of method, header and body: to the default exchange, mandatory."""
    buffer = FrameBuffer()
    arguments = dumps("Bssbb", (0, "", wakeup.broker_queue, True, False))
    frame_writer(buffer, buffer)(1, channel, Basic.Publish, arguments, message(wakeup, identity, origin))
    return buffer.written


def message(wakeup: Wakeup, identity: str, origin: str) -> Any:
    headers = {
        "lang": "py",
        "task": TASK,
        "id": identity,
        "root_id": identity,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "eta": None,
        "expires": None,
        "timelimit": [None, None],
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "origin": origin,
        "ignore_result": True,
        "beatkeeper_queue": wakeup.queue,
        "beatkeeper_v": WAKEUP_VERSION,
        "beatkeeper_tries": wakeup.tries,
    }
    return amqp.Message(
        BODY,
        content_type="application/json",
        content_encoding="utf-8",
        application_headers=headers,
        correlation_id=identity,
        reply_to="",
        # Not written to disk: a wake-up that a restart of the broker loses costs two seconds.
        delivery_mode=1,
    )
