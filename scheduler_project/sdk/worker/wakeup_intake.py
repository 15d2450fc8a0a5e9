"""Wake-ups from RabbitMQ: a connection of our own on the worker's event loop.

Nothing here can harm the host's consumer: it is another connection with another prefetch count, and every error of it
ends in a reconnect. Queues are never declared; a lookup finds out first whether one exists (queue_lookup).

How many wake-ups a worker holds differs. Classic queues before RabbitMQ 4.0 are counted together: as many as there
are slots, each acked when its run ends, after a minute at the latest. Quorum queues, and all from 4.0 on, are counted
one by one: one wake-up of each, acked as soon as it is admitted. Otherwise a worker would be woken for one run at a
time, and would hold wake-ups that idle workers could use.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import kombu
from amqp import AccessRefused
from kombu import Consumer

from ..process import processes
from ..shared.folder import Runtime
from ..transport.broker_tls import trusts_anybody
from .admission import Admission
from .queue_lookup import CONNECT_TIMEOUT, QueueLookup
from .queues_with_work import QueueServer
from .wakeup_connection import connection_trouble
from .wakeup_message import ack, problem_with, put_aside, required_headers

logger = logging.getLogger(__name__)

WAITING_SECONDS = 1.0
LOOKUP_SOON, LOOKUP_AGAIN = 1.0, 10.0
MAX_PAUSE = 30.0
READS_AT_ONCE = 100
# The last part of a broker queue's name says its arguments; that of a quorum queue begins so.
QUORUM = "q"


class WaitingWakeup(NamedTuple):
    """A wake-up that waits for a slot."""

    message: Any
    since: float
    # It makes room for the next one of its queue at once, not when its run ends.
    acked_early: bool


class WakeupIntake(QueueServer):
    """Admit wake-ups, and serve the queues that the ledger's responses name besides."""

    def __init__(self, c: Any, hub: Any, runtime: Runtime, admission: Admission) -> None:
        super().__init__(hub, runtime, admission)
        self.c = c
        self.connection: Any = None
        # Kept here: on a lost connection kombu would reconnect to return its socket.
        self._socket: Any = None
        # Whether wake-ups are acked early -> their consumer, on a channel of its own.
        self.consumers: dict[bool, Any] = {}
        self.counts_each = True
        self.waiting: deque[WaitingWakeup] = deque()
        self.consuming: set[str] = set()
        self._lookup: QueueLookup | None = None
        self._looked_up: set[str] = set()
        self._refused: set[str] = set()
        self._seen_response = -1
        self._lookup_at = self._connect_at = self._beat_at = 0.0
        self._pause = 1.0

    def start(self) -> None:
        super().start()
        if self.admission.look_every is not None:
            self._entries.append(self.hub.timer.call_repeatedly(self.admission.look_every, self.pump))

    def close(self) -> None:
        super().close()
        self._drop_connection()

    def _tick(self, now: float) -> None:
        self._finish_lookup()
        if self.runtime.table.header.draining:
            self._ack_overdue(now - WAITING_SECONDS)
            if self.connection is not None and self.consuming and not self.waiting:
                for consumer in self.consumers.values():
                    consumer.cancel()
                self.consuming = set()
            return
        self._look_for_queues(now)
        self._keep_alive(now)
        self.admission.maintain()
        self.pump()
        self.serve_queues()
        self._ack_overdue(now)
        if self.consuming:
            self.runtime.table.header.heard_at = processes.boottime()

    # Finding queues.

    def _look_for_queues(self, now: float) -> None:
        connect, response = self.connection is None, self.runtime.table.header.responses
        is_due = now >= self._connect_at if connect else response != self._seen_response
        if self._lookup is not None or not is_due:
            return
        self._seen_response = response
        named = {queue.broker_queue for queue in self.runtime.queues() if queue.broker_queue}
        names = named - self.consuming - self._refused
        # A queue may be named before its broker queue exists; one that stays away is looked up only now and then.
        fresh = names - self._looked_up
        if connect or fresh or (names and now >= self._lookup_at):
            self._looked_up, self._lookup_at = names, now + (LOOKUP_SOON if fresh else LOOKUP_AGAIN)
            self._lookup = QueueLookup(self.c.app, names, connect, self.c.amqheartbeat)
            self._lookup.start()

    def _finish_lookup(self) -> None:
        lookup = self._lookup
        if lookup is None or lookup.is_alive():
            return
        self._lookup = None
        if lookup.error is not None:
            raise lookup.error
        if lookup.connection is not None:
            self._use(lookup.connection)
        self._consume(lookup.found)

    def _use(self, connection: Any) -> None:
        self.connection = connection
        self.counts_each = connection.qos_semantics_matches_spec
        self._pause = 1.0
        self._socket = connection.connection.sock
        self.hub.add_reader(self._socket, self._readable)
        logger.info("Wake-ups: connected, with room for %d", self.runtime.table.size)
        if trusts_anybody(connection.ssl):
            logger.warning("Wake-ups: the app has no broker's certificate checked (cert_reqs is CERT_NONE)")

    def _consume(self, names: Iterable[str]) -> None:
        if self.connection is None:
            return
        for name in sorted(set(names) - self.consuming):
            consumer = self._consumer_of(name)
            consumer.add_queue(kombu.Queue(name, no_declare=True))
            try:
                consumer.consume()
            except AccessRefused:
                # The broker's user was made for another tenant or pool.
                logger.info(
                    "Wake-ups: %s is not ours to read; runs of its queue are fetched from the ledger", name
                )
                self._refused.add(name)
                raise
            self.consuming.add(name)
        self._read_on()

    def _consumer_of(self, name: str) -> Any:
        early = self.counts_each or is_quorum(name)
        if early not in self.consumers:
            channel = self.connection.channel()
            # A count over the whole channel is refused by quorum queues, and by RabbitMQ 4 for all.
            channel.basic_qos(0, 1 if early else self.runtime.table.size, not early)
            self.consumers[early] = Consumer(
                channel,
                queues=[],
                on_message=partial(self.on_message, early),
                accept=["json"],
                auto_declare=False,
            )
        return self.consumers[early]

    # The connection.

    def _readable(self) -> None:
        if self.connection is None:
            return
        try:
            for _read in range(READS_AT_ONCE):
                self.connection.drain_events(timeout=0)
            self._read_on()
        except TimeoutError:
            pass
        except Exception as error:
            self._failed(error)

    def _read_on(self) -> None:
        """Read again soon what TLS has decrypted already: no poll of the socket shows it."""
        self.hub.call_soon(self._readable)

    def _keep_alive(self, now: float) -> None:
        if self.connection is None or now < self._beat_at:
            return
        interval = self.connection.get_heartbeat_interval() or 0
        if interval:
            self.connection.heartbeat_check()
            self._beat_at = now + interval / 2

    def _failed(self, error: Exception) -> None:
        why = connection_trouble(self.c.app, error)
        logger.warning("Wake-ups: connection lost (%s), next try in %.0f s", why, self._pause)
        self._drop_connection()
        self._connect_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, MAX_PAUSE)

    def _drop_connection(self) -> None:
        """Drop the connection: what was not acked goes back to its queue, admitted runs go on."""
        connection, self.connection = self.connection, None
        socket, self._socket = self._socket, None
        self.consumers = {}
        self.waiting.clear()
        self.consuming = set()
        # Noted at once: the guard looks for work itself from now on.
        self.runtime.table.header.heard_at = 0.0
        if connection is None:
            return
        try:
            self.hub.remove_reader(socket)
        except Exception:
            logger.debug("Wake-ups: the reader was gone already", exc_info=True)
        try:
            # TLS would send its close and wait for a reply, and the host's loop with it.
            socket.settimeout(0)
            connection.collect(CONNECT_TIMEOUT)
        except Exception:
            logger.debug("Wake-ups: the connection was gone already", exc_info=True)

    # Wake-ups.

    def on_message(self, acked_early: bool, message: Any) -> None:
        if problem := problem_with(message):
            put_aside(message, problem)
            return
        message.headers = required_headers(message.headers)
        self.waiting.append(WaitingWakeup(message, time.monotonic(), acked_early))
        self.hub.call_soon(self.pump)

    def pump(self) -> None:
        try:
            while self.waiting and self.admission.room() > 0:
                self._admit(self.waiting.popleft())
        except Exception as error:
            self._failed(error)

    def _admit(self, wakeup: WaitingWakeup) -> None:
        """Admit a wake-up; put it aside if Celery cannot take it, or the broker would send it again and again."""
        try:
            self.admission.admit(wakeup.message, partial(self._done, wakeup.message))
        except Exception as error:
            put_aside(wakeup.message, f"Celery does not take it ({type(error).__name__})")
        else:
            if wakeup.acked_early:
                ack(wakeup.message)

    def _done(self, message: Any) -> None:
        ack(message)
        self.hub.call_soon(self.pump)

    def _ack_overdue(self, now: float) -> None:
        """Ack wake-ups for which no slot became free: the next response names their queues."""
        while self.waiting and now - self.waiting[0].since > WAITING_SECONDS:
            ack(self.waiting.popleft().message)


def is_quorum(broker_queue: str) -> bool:
    return broker_queue.rpartition(".")[2].startswith(QUORUM)
