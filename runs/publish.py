"""Permits to a broker: "this lane has work". Losing or doubling one costs time, never truth (promise 5).

One publisher and breaker per broker, in a thread of its own. Nobody ever waits for it: what does not fit into its
memory is dropped, and what the broker did not confirm is not asked after; heartbeats serve what permits miss.
"""

import json
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import uuid4

import amqp
import kombu

logger = logging.getLogger(__name__)

HIGHEST_PRIORITY = 9
QUEUE_ARGUMENTS = {"x-max-priority": HIGHEST_PRIORITY}
TASK = "beatkeeper.run"
PERMIT_VERSION = 1
MOST_IN_MEMORY = 20_000
WINDOW = 1000
BATCH = 500
PROBE = 100
TIMEOUT_SECONDS = 5.0
HEARTBEAT_SECONDS = 10
SHORTEST_PAUSE = 0.5
LONGEST_PAUSE = 15.0
BODY = json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])


class Permit(NamedTuple):
    queue: str
    lane: str
    priority: int
    tries: int = 0


class BrokerSilent(Exception):
    """The broker takes messages and confirms none."""


class Publisher:
    def __init__(self, url: str) -> None:
        self.url = url
        self.stopping = False
        # Of the breaker: open while the broker is away or confirms nothing.
        self.broken = False
        self._silent = False
        self.dropped = 0
        self._permits: deque[Permit] = deque()
        self._queues: set[str] = set()
        self._wanted = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="beatkeeper-publish", daemon=True)
        self._thread.start()

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def declare(self, queues: Iterable[str]) -> None:
        """Queues that the broker must hold, now and after each reconnect."""
        with self._wanted:
            self._queues.update(queues)
            self._wanted.notify()

    def offer(self, permits: Iterable[Permit]) -> None:
        with self._wanted:
            for permit in permits:
                if len(self._permits) >= (PROBE if self.broken else MOST_IN_MEMORY):
                    self.dropped += 1
                else:
                    self._permits.append(permit)
            self._wanted.notify()

    def _run(self) -> None:
        failures = 0
        while not self.stopping:
            try:
                with Session(self.url) as session:
                    if not self._silent:
                        self._heal()
                    failures = 0
                    self._serve(session)
            except Exception as error:  # any broker trouble ends the session and nothing else
                failures += 1
                self._break(error)
            self._pause(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(failures, 6)))

    def _serve(self, session: "Session") -> None:
        while not self.stopping:
            with self._wanted:
                if not self._permits and self._queues <= session.declared:
                    self._wanted.wait(SHORTEST_PAUSE)
                missing = self._queues - session.declared
                batch = [self._permits.popleft() for _ in range(min(BATCH, len(self._permits)))]
                more = bool(self._permits)
            session.declare(missing)
            session.send(batch, more)
            if session.confirmed:
                self._heal()
            with self._wanted:
                self._permits.extendleft(session.take_returned())

    def _heal(self) -> None:
        if self.broken:
            logger.warning("the broker is back")
        self.broken = self._silent = False

    def _break(self, error: Exception) -> None:
        if not self.broken:
            logger.warning(
                "the broker is away (%s: %s): workers are fed by their heartbeats",
                type(error).__name__,
                error,
            )
        # A broker under an alarm lets us connect again at once; only a confirmation shows that it works.
        self._silent = isinstance(error, BrokerSilent)
        with self._wanted:
            self.broken = True
            self.dropped += len(self._permits)
            self._permits.clear()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < end:
            time.sleep(0.1)


class Session:
    """One connection: a channel for declaring, which a refusal closes, and one with pipelined confirms."""

    def __init__(self, url: str) -> None:
        self.declared: set[str] = set()
        self.confirmed = 0
        self._waiting: dict[int, Permit] = {}
        self._sent = 0
        self._returned: list[Permit] = []
        self._origin = f"{os.getpid()}@{socket.gethostname()}"
        self._connection = _connect(url)
        self._channel = self._connection.channel()
        self._channel.confirm_select()
        self._channel.events["basic_ack"].add(self._on_settled)
        self._channel.events["basic_nack"].add(self._on_settled)
        self._channel.events["basic_return"].add(self._on_return)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._connection.collect()
        except Exception:  # a broken connection cannot even be closed
            logger.debug("the connection was gone already")

    def declare(self, queues: Iterable[str]) -> None:
        for queue in sorted(queues):
            channel = self._connection.channel()
            try:
                channel.queue_declare(queue, durable=True, auto_delete=False, arguments=QUEUE_ARGUMENTS)
                channel.close()
            except amqp.exceptions.PreconditionFailed as error:
                logger.error("queue %s exists with other arguments and is used as it is: %s", queue, error)
            self.declared.add(queue)

    def send(self, permits: Iterable[Permit], more: bool = False) -> None:
        for permit in permits:
            if permit.queue not in self.declared:
                self.declare([permit.queue])
            self._sent += 1
            self._waiting[self._sent] = permit
            self._channel.basic_publish(
                self._message(permit), exchange="", routing_key=permit.queue, mandatory=True
            )
            if len(self._waiting) >= WINDOW:
                self._settle(WINDOW // 2)
        if not more:
            self._settle(0)
        self._listen(0.001)

    def _listen(self, seconds: float) -> None:
        """Takes what the broker has to say; its heartbeats count only once they are read."""
        try:
            self._connection.drain_events(timeout=seconds)
        except TimeoutError:
            self._connection.heartbeat_tick()

    def take_returned(self) -> list[Permit]:
        """Permits whose queue is gone, for one more try after it was declared again."""
        returned, self._returned = self._returned, []
        return returned

    def _settle(self, most: int) -> None:
        """Waits until no more than so many are unconfirmed; a broker under an alarm confirms nothing."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while len(self._waiting) > most:
            before = len(self._waiting)
            self._listen(0.5)
            if len(self._waiting) < before:
                end = time.monotonic() + TIMEOUT_SECONDS
            elif time.monotonic() > end:
                raise BrokerSilent(BrokerSilent.__doc__)

    def _on_settled(self, tag: int, multiple: bool) -> None:
        settled = [sent for sent in self._waiting if sent <= tag] if multiple else [tag]
        for sent in settled:
            if self._waiting.pop(sent, None) is not None:
                self.confirmed += 1

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        """No such queue any more. It is confirmed all the same, so this is the only sign of it."""
        self.declared.discard(routing_key)
        headers = message.properties["application_headers"]
        if headers["beatkeeper_tries"] == 0:
            lane, priority = headers["beatkeeper_lane"], message.properties["priority"]
            self._returned.append(Permit(routing_key, lane, priority, tries=1))

    def _message(self, permit: Permit) -> amqp.Message:
        """What a stock Celery worker takes for a task of protocol 2: a missing key would crash it."""
        identity = str(uuid4())
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
            "origin": self._origin,
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
            delivery_mode=2,
            priority=permit.priority,
        )


def _connect(url: str) -> Any:
    described = kombu.Connection(
        url,
        connect_timeout=TIMEOUT_SECONDS,
        heartbeat=HEARTBEAT_SECONDS,
        transport_options={"read_timeout": TIMEOUT_SECONDS, "write_timeout": TIMEOUT_SECONDS},
    )
    return described.transport.establish_connection()
