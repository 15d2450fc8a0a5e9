"""A permit as the bytes it is on the wire: made once per queue, lane and priority, then only its id is put in.

What a stock Celery worker takes for a task of protocol 2 (a missing key would crash it), so any consumer and every
tool of the broker can read one. py-amqp itself writes the pattern.
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
PERMIT_VERSION = 1
BODY = json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
ID_LENGTH = 36
# The last 12 digits of a permit's id are its number in its session.
NUMBER_DIGITS = 12
PLACE = "?" * ID_LENGTH
MOST_PATTERNS = 20_000
# Nothing that fits into a permit comes near it.
FRAME_MAX = 131_072


class Permit(NamedTuple):
    queue: str
    lane: str
    priority: int
    tries: int = 0


class Press:
    """Prints the permits of one session, on one channel."""

    def __init__(self, channel: int) -> None:
        self._channel = channel
        self._patterns: dict[Permit, list[bytes]] = {}
        self._series = str(uuid4())[:-NUMBER_DIGITS].encode()
        self._origin = f"{os.getpid()}@{socket.gethostname()}"

    def print(self, permit: Permit, number: int) -> bytes:
        pattern = self._patterns.get(permit)
        if pattern is None:
            pattern = self._cut(permit)
        return (b"%b%012x" % (self._series, number)).join(pattern)

    def number_of(self, identity: str) -> int:
        """Which permit it was, by the id that came back; 0: none of this session."""
        series, number = identity[:-NUMBER_DIGITS], identity[-NUMBER_DIGITS:]
        return int(number, 16) if series.encode() == self._series else 0

    def _cut(self, permit: Permit) -> list[bytes]:
        if len(self._patterns) >= MOST_PATTERNS:
            self._patterns.clear()
        pattern = publication(permit, PLACE, self._channel, self._origin).split(PLACE.encode())
        self._patterns[permit] = pattern
        return pattern


class Paper:
    """Takes what py-amqp would send, as connection and transport in one."""

    frame_max = FRAME_MAX
    bytes_sent = 0

    def __init__(self) -> None:
        self.written = b""

    def write(self, frames: memoryview) -> None:
        self.written += bytes(frames)


def publication(permit: Permit, identity: str, channel: int, origin: str) -> bytes:
    """The frames of method, header and body, to the default exchange; mandatory."""
    paper = Paper()
    arguments = dumps("Bssbb", (0, "", permit.queue, True, False))
    frame_writer(paper, paper)(1, channel, Basic.Publish, arguments, message(permit, identity, origin))
    return paper.written


def message(permit: Permit, identity: str, origin: str) -> Any:
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
        "beatkeeper_lane": permit.lane,
        "beatkeeper_v": PERMIT_VERSION,
        "beatkeeper_tries": permit.tries,
    }
    return amqp.Message(
        BODY,
        content_type="application/json",
        content_encoding="utf-8",
        application_headers=headers,
        correlation_id=identity,
        reply_to="",
        # Not written to disk: a broker that restarts owes nobody a permit.
        delivery_mode=1,
        priority=permit.priority,
    )
