"""Permits from RabbitMQ: a connection of our own on the worker's event loop.

Nothing here can hurt the host's consumer: another connection, another prefetch count, and every error of it ends
in a reconnect. Queues are never declared; whether one exists is asked elsewhere first, because a consume on a
missing queue closes its channel.

How many permits a worker holds differs. Classic queues before RabbitMQ 4.0 are counted together: as many as there
are slots, each acked when its run ends. Quorum queues, and all from 4.0 on, are counted one by one: one permit of
each, acked as soon as it is let in, or else a lane would have one run at a time and a worker a permit of every lane.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from celery import bootsteps
from celery.worker import state as worker_state
from kombu import Consumer, Queue

from . import processes
from .permit_task import LANE_HEADER, NAME
from .runtime import Runtime

logger = logging.getLogger(__name__)

TICK = 0.2
KEPT_SECONDS = 1.0
ACKED_AFTER = 60.0
LOOK_AGAIN = 10.0
CONNECT_TIMEOUT = 5.0
LONGEST_PAUSE = 30.0
READS_AT_ONCE = 100
# The last part of a queue's name tells its arguments; of quorum queues it begins so.
QUORUM = "q"
# Far beyond any run: the host's own limit, given to its pool, must not end ours.
NO_LIMIT = 10 * 365 * 86_400


class Permits(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:
        self.intake: Intake | None = None
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:
        return getattr(c.controller, "beatkeeper", None) is not None

    def start(self, c: Any) -> None:
        if c.hub is None:
            logger.info("This broker has no event loop: runs are fetched from the ledger without permits")

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Called for every (re)connect of the host, whose loop starts with no readers and no timers."""
        self.stop(c)
        self.intake = Intake(c, hub, c.controller.beatkeeper.runtime)
        self.intake.start()

    def stop(self, c: Any) -> None:
        if self.intake is not None:
            self.intake.close()
            self.intake = None

    shutdown = stop


@dataclass
class Search:
    """What a thread found out, away from the event loop: a connection, and which queues exist."""

    names: set[str]
    want_connection: bool
    connection: Any = None
    found: set[str] = field(default_factory=set)
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Kept(NamedTuple):
    """A permit that waits for a slot."""

    message: Any
    since: float
    # It makes room for the next one of its queue at once, not when its run ends.
    acked_early: bool


class Intake:
    def __init__(self, c: Any, hub: Any, runtime: Runtime) -> None:
        self.c, self.hub, self.runtime = c, hub, runtime
        self.connection: Any = None
        # Whether permits are acked early -> their consumer, on a channel of its own.
        self.consumers: dict[bool, Any] = {}
        self.counts_each = True
        self.kept: deque[Kept] = deque()
        self.running: dict[Any, float] = {}
        self.consuming: set[str] = set()
        self._search: Search | None = None
        self._asked_for: set[str] = set()
        self._entry: Any = None
        self._answer = -1
        self._look_at = self._connect_at = self._beat_at = 0.0
        self._pause = 1.0

    def start(self) -> None:
        self._entry = self.hub.timer.call_repeatedly(TICK, self.tick)

    def close(self) -> None:
        if self._entry is not None:
            self._entry.cancel()
        self._drop_connection()

    def tick(self) -> None:
        """A failure here is ours and must not reach the host's loop."""
        try:
            self._tick(time.monotonic())
        except Exception as error:
            self._broken(error)

    def _tick(self, now: float) -> None:
        self._take_found()
        if self.runtime.table.draining:
            self._give_up_kept(now - KEPT_SECONDS)
            if self.connection is not None and not self.kept:
                self._cancel()
            return
        self._look_for_queues(now)
        self._keep_alive(now)
        self._ack_long_ones(now)
        self._replace_lost_children()
        self.pump()
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
        names = {lane.queue for lane in self.runtime.lanes() if lane.queue} - self.consuming
        # A queue that was not there is asked for again only after a while.
        if connect or names - self._asked_for or (names and now >= self._look_at):
            self._asked_for, self._look_at = names, now + LOOK_AGAIN
            self._search = Search(names, connect)
            threading.Thread(target=self._find, args=(self._search,), daemon=True).start()

    def _find(self, search: Search) -> None:
        try:
            with self.c.app.connection_for_read(connect_timeout=CONNECT_TIMEOUT) as connection:
                search.found = existing(connection, search.names)
            if search.want_connection:
                search.connection = self.c.app.connection_for_read(
                    connect_timeout=CONNECT_TIMEOUT, heartbeat=self.c.amqheartbeat
                )
                search.connection.connect()
        except Exception as error:
            search.error = error
        search.done.set()

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
        self.hub.add_reader(connection.connection.sock, self._readable)
        logger.info("Permits: connected, with room for %d", self.runtime.table.size)

    def _consume(self, names: Iterable[str]) -> None:
        if self.connection is None:
            return
        fresh = set(names) - self.consuming
        for name in sorted(fresh):
            self._consumer_for(name).add_queue(Queue(name, no_declare=True))
        if fresh:
            for consumer in self.consumers.values():
                consumer.consume()
            self.consuming |= fresh

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
        try:
            for _read in range(READS_AT_ONCE):
                self.connection.drain_events(timeout=0)
        except TimeoutError:
            pass
        except Exception as error:
            self._broken(error)

    def _keep_alive(self, now: float) -> None:
        if self.connection is None or now < self._beat_at:
            return
        interval = self.connection.get_heartbeat_interval() or 0
        if interval:
            self.connection.heartbeat_check()
            self._beat_at = now + interval / 2

    def _broken(self, error: Exception) -> None:
        logger.warning("Permits: connection lost (%s), next try in %.0f s", type(error).__name__, self._pause)
        self._drop_connection()
        self._connect_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _drop_connection(self) -> None:
        """What was not acked goes back to its queue; the runs it let in go on."""
        connection, self.connection = self.connection, None
        self.consumers = {}
        self.kept.clear()
        self.consuming = set()
        if connection is None:
            return
        try:
            self.hub.remove_reader(connection.connection.sock)
        except Exception:
            logger.debug("Permits: the reader was gone already", exc_info=True)
        try:
            connection.collect(CONNECT_TIMEOUT)
        except Exception:
            logger.debug("Permits: the connection was gone already", exc_info=True)

    def _cancel(self) -> None:
        for consumer in self.consumers.values() if self.consuming else ():
            consumer.cancel()
        self.consuming = set()

    # Permits.

    def on_message(self, acked_early: bool, message: Any) -> None:
        headers = message.headers or {}
        if headers.get("task") != NAME or not headers.get("id") or LANE_HEADER not in headers:
            logger.warning("Permits: a message that is no permit was dropped")
            ack(message)
            return
        self.kept.append(Kept(message, time.monotonic(), acked_early))
        self.hub.call_soon(self.pump)

    def pump(self) -> None:
        try:
            while self.kept and self.room() > 0:
                kept = self.kept.popleft()
                self._let_in(kept.message)
                if kept.acked_early:
                    ack(kept.message)
        except Exception as error:
            self._broken(error)

    def room(self) -> int:
        self.running = {
            request: since
            for request, since in self.running.items()
            if request in worker_state.reserved_requests
        }
        foreign = sum(1 for request in list(worker_state.active_requests) if request.name != NAME)
        return self.runtime.table.size - len(self.running) - foreign

    def _let_in(self, message: Any) -> None:
        """Through the host's own strategy, so that custom requests, pools and events see it like any task."""
        if self.c.controller.time_limit or self.c.controller.soft_time_limit:
            message.headers["timelimit"] = [NO_LIMIT, NO_LIMIT]

        def settle(*_arguments: Any) -> None:
            ack(message)
            self.hub.call_soon(self.pump)

        self.c.strategies[NAME](message, None, settle, settle, [self._let_in_as])

    def _let_in_as(self, request: Any) -> None:
        self.running[request] = time.monotonic()

    def _ack_long_ones(self, now: float) -> None:
        """A permit must not grow as old as its run: the broker would end the channel (consumer time-out)."""
        for request, since in self.running.items():
            if now - since > ACKED_AFTER and not request.acknowledged:
                request.acknowledge()

    def _replace_lost_children(self) -> None:
        """The pool itself looks after its children every five seconds; so long the next attempt would wait."""
        lost = [request for request in self.running if is_lost(request)]
        if lost:
            self.c.pool.maintain_pool()
        for request in lost:
            del self.running[request]

    def _give_up_kept(self, now: float) -> None:
        """No slot became free: the heartbeat brings somebody to the run, so the permit has done its work."""
        while self.kept and now - self.kept[0].since > KEPT_SECONDS:
            ack(self.kept.popleft().message)


def is_quorum(queue: str) -> bool:
    return queue.rpartition(".")[2].startswith(QUORUM)


def is_lost(request: Any) -> bool:
    """The child that worked on it died."""
    pid = getattr(request, "worker_pid", None)
    return pid is not None and not processes.alive(pid, processes.started(pid))


def ack(message: Any) -> None:
    """A permit that cannot be acked comes again, finds nothing and is acked then."""
    try:
        if not message.acknowledged:
            message.ack()
    except Exception:
        logger.debug("Permits: a permit could not be acked", exc_info=True)


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
