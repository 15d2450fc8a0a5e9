"""Permits from RabbitMQ: a connection of our own on the worker's event loop.

Nothing here can hurt the host's consumer: another connection, another prefetch count, and every error of it ends
in a reconnect. Queues are never declared; whether one exists is asked elsewhere first (queue_search).

How many permits a worker holds differs. Classic queues before RabbitMQ 4.0 are counted together: as many as there
are slots, each acked when its run ends, after a minute at the latest. Quorum queues, and all from 4.0 on, are counted
one by one: one permit of each, acked as soon as it is let in, or else a lane would have one run at a time and a worker
a permit of every lane.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

from amqp import AccessRefused
from celery import bootsteps
from kombu import Consumer, Queue

from .admission import Admission, FeedsChildren, HostPool
from .named_lanes import ServesNamed
from .own_loop import OwnLoop
from .permit_connection import carries_permits, unchecked, why_not_connected
from .permit_form import needed, wrong_with
from .queue_search import CONNECT_TIMEOUT, Search
from .runtime import Runtime

logger = logging.getLogger(__name__)

KEPT_SECONDS = 1.0
LOOK_SOON, LOOK_AGAIN = 1.0, 10.0
LONGEST_PAUSE = 30.0
READS_AT_ONCE = 100
# The last part of a queue's name tells its arguments; of quorum queues it begins so.
QUORUM = "q"


class Permits(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:
        self.intake: ServesNamed | None = None
        self.loop: OwnLoop | None = None
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:
        return getattr(c.controller, "beatkeeper", None) is not None

    def start(self, c: Any) -> None:
        runtime = c.controller.beatkeeper.runtime
        if not carries_permits(c.app):
            logger.info("This broker carries no permits: runs are fetched from the ledger")
        elif runtime.config.keeps_feed:
            self.stop(c)
            self.loop = OwnLoop()
            self.intake = Intake(c, self.loop, runtime, FeedsChildren(runtime))
            self.intake.start()
            self.loop.start()
        elif c.hub is None:
            logger.info("This worker has no event loop: runs are fetched from the ledger without permits")

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Called for every (re)connect of the host, whose loop starts with no readers and no timers."""
        runtime = c.controller.beatkeeper.runtime
        if runtime.config.keeps_feed:
            return
        self.stop(c)
        pool = HostPool(c, runtime)
        self.intake = (
            Intake(c, hub, runtime, pool) if carries_permits(c.app) else ServesNamed(hub, runtime, pool)
        )
        self.intake.start()

    def stop(self, c: Any) -> None:
        if self.loop is not None:
            self.loop.close()
            self.loop = None
        if self.intake is not None:
            self.intake.close()
            self.intake = None

    shutdown = stop


class Kept(NamedTuple):
    """A permit that waits for a slot."""

    message: Any
    since: float
    # It makes room for the next one of its queue at once, not when its run ends.
    acked_early: bool


class Intake(ServesNamed):
    """Lets permits in, and serves what the ledger's answers name besides."""

    def __init__(self, c: Any, hub: Any, runtime: Runtime, admission: Admission) -> None:
        super().__init__(hub, runtime, admission)
        self.c = c
        self.connection: Any = None
        # Asked of a lost connection, kombu would make another one for it.
        self._socket: Any = None
        # Whether permits are acked early -> their consumer, on a channel of its own.
        self.consumers: dict[bool, Any] = {}
        self.counts_each = True
        self.kept: deque[Kept] = deque()
        self.consuming: set[str] = set()
        self._search: Search | None = None
        self._asked_for: set[str] = set()
        self._refused: set[str] = set()
        self._answer = -1
        self._look_at = self._connect_at = self._beat_at = 0.0
        self._pause = 1.0

    def start(self) -> None:
        super().start()
        if self.admission.look_every is not None:
            self._entries.append(self.hub.timer.call_repeatedly(self.admission.look_every, self.pump))

    def close(self) -> None:
        super().close()
        self._drop_connection()

    def _tick(self, now: float) -> None:
        self.runtime.table.looped()
        self._take_found()
        if self.runtime.table.draining:
            self._give_up_kept(now - KEPT_SECONDS)
            if self.connection is not None and not self.kept:
                self._cancel()
            return
        self._look_for_queues(now)
        self._keep_alive(now)
        self.admission.look_after()
        self.pump()
        self.serve_named()
        self._give_up_kept(now)

    # Finding queues.

    def _look_for_queues(self, now: float) -> None:
        if self._search is not None:
            return
        connect = self.connection is None
        if connect and now < self._connect_at:
            return
        answer = self.runtime.table.answer
        if not connect and answer == self._answer:
            return
        self._answer = answer
        names = {lane.queue for lane in self.runtime.lanes() if lane.queue} - self.consuming - self._refused
        # A lane may be heard of before its queue is there; one that stays away is asked for only now and then.
        fresh = names - self._asked_for
        if connect or fresh or (names and now >= self._look_at):
            self._asked_for, self._look_at = names, now + (LOOK_SOON if fresh else LOOK_AGAIN)
            self._search = Search(self.c.app, names, connect, self.c.amqheartbeat)
            self._search.start()

    def _take_found(self) -> None:
        search = self._search
        if search is None or not search.done.is_set():
            return
        self._search = None
        if search.error is not None:
            raise search.error
        if search.connection is not None:
            self._use(search.connection)
        self._consume(search.found)

    def _use(self, connection: Any) -> None:
        self.connection = connection
        self.counts_each = connection.qos_semantics_matches_spec
        self.consumers = {}
        self.consuming = set()
        self._pause = 1.0
        self._socket = connection.connection.sock
        self.hub.add_reader(self._socket, self._readable)
        logger.info("Permits: connected, with room for %d", self.runtime.table.size)
        if unchecked(connection):
            logger.warning("Permits: the app has no broker's certificate checked (cert_reqs is CERT_NONE)")

    def _consume(self, names: Iterable[str]) -> None:
        if self.connection is None:
            return
        for name in sorted(set(names) - self.consuming):
            consumer = self._consumer_for(name)
            consumer.add_queue(Queue(name, no_declare=True))
            try:
                consumer.consume()
            except AccessRefused:
                # Shared by small tenants; ours would read the others' permits too.
                logger.info(
                    "Permits: %s is not ours to read; runs of its lane are fetched from the ledger", name
                )
                self._refused.add(name)
                raise
            self.consuming.add(name)
        self._read_on()

    def _consumer_for(self, name: str) -> Any:
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
        """TLS decrypts more than was asked for, and no poll of the socket shows it."""
        self.hub.call_soon(self._readable)

    def _keep_alive(self, now: float) -> None:
        if self.connection is None or now < self._beat_at:
            return
        interval = self.connection.get_heartbeat_interval() or 0
        if interval:
            self.connection.heartbeat_check()
            self._beat_at = now + interval / 2

    def _failed(self, error: Exception) -> None:
        why = why_not_connected(self.c.app, error)
        logger.warning("Permits: connection lost (%s), next try in %.0f s", why, self._pause)
        self._drop_connection()
        self._connect_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _drop_connection(self) -> None:
        """What was not acked goes back to its queue; the runs it let in go on."""
        connection, self.connection = self.connection, None
        socket, self._socket = self._socket, None
        self.consumers = {}
        self.kept.clear()
        self.consuming = set()
        if connection is None:
            return
        try:
            self.hub.remove_reader(socket)
        except Exception:
            logger.debug("Permits: the reader was gone already", exc_info=True)
        try:
            # TLS would say goodbye and wait for an answer, with the host's loop.
            socket.settimeout(0)
            connection.collect(CONNECT_TIMEOUT)
        except Exception:
            logger.debug("Permits: the connection was gone already", exc_info=True)

    def _cancel(self) -> None:
        for consumer in self.consumers.values() if self.consuming else ():
            consumer.cancel()
        self.consuming = set()

    # Permits.

    def on_message(self, acked_early: bool, message: Any) -> None:
        if wrong := wrong_with(message):
            put_aside(message, wrong)
            return
        message.headers = needed(message.headers)
        self.kept.append(Kept(message, time.monotonic(), acked_early))
        self.hub.call_soon(self.pump)

    def pump(self) -> None:
        try:
            while self.kept and self.admission.room() > 0:
                kept = self.kept.popleft()
                if self._let_in(kept.message) and kept.acked_early:
                    ack(kept.message)
        except Exception as error:
            self._failed(error)

    def _let_in(self, message: Any) -> bool:
        """What Celery cannot take although it looks like a permit must not come again and again."""
        try:
            self.admission.let_in(message, partial(self._over, message))
        except Exception as error:
            put_aside(message, f"Celery does not take it ({type(error).__name__})")
            return False
        return True

    def _over(self, message: Any) -> None:
        ack(message)
        self.hub.call_soon(self.pump)

    def _give_up_kept(self, now: float) -> None:
        """No slot became free: the heartbeat brings somebody to the run, so the permit has done its work."""
        while self.kept and now - self.kept[0].since > KEPT_SECONDS:
            ack(self.kept.popleft().message)


def is_quorum(queue: str) -> bool:
    return queue.rpartition(".")[2].startswith(QUORUM)


def put_aside(message: Any, why: str) -> None:
    """The broker moves what is rejected to the queue of dead messages, for a person to look at."""
    queue = (message.delivery_info or {}).get("routing_key", "")
    logger.warning("Permits: a message in %s cannot be read and is put aside: %s", queue, why)
    try:
        if not message.acknowledged:
            message.reject(requeue=False)
    except Exception:
        logger.debug("Permits: a message could not be rejected", exc_info=True)


def ack(message: Any) -> None:
    """A permit that cannot be acked comes again, finds nothing and is acked then."""
    try:
        if not message.acknowledged:
            message.ack()
    except Exception:
        logger.debug("Permits: a permit could not be acked", exc_info=True)
