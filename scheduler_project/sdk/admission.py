"""Where a permit goes once there is room for a run: into the host's pool, or to the children of a feed.

A pool of processes runs the permit's task like any task of the host's. A pool of threads or greenlets cannot: what
runs there nobody can end. Its worker keeps a feed beside it, and a permit only wakes one of the feed's children.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import uuid4

from celery.utils import log as celery_log
from celery.worker import state as worker_state
from celery.worker.request import Request
from kombu.message import Message

from . import processes
from .doorbell import Doorbell
from .ledger import Lane
from .permit_task import LANE_HEADER, NAME, lane_named
from .runtime import Runtime
from .slots import FREE

logger = logging.getLogger(__name__)

ACKED_AFTER_SECONDS = 60.0
# Far beyond any run: the host's own limit, given to its pool, must not end ours.
NO_LIMIT = 10 * 365 * 86_400
JSON = "application/json"
NO_ARGUMENTS: Any = ([], {}, {})
NO_CALLBACKS = '[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


class Admission(Protocol):
    # How often to look for room; None: whoever makes room says so.
    look_every: float | None

    def room(self) -> int:
        """For how many further runs."""

    def let_in(self, message: Any, over: Callable[[], None]) -> None:
        """Calls `over` when the permit has done its work."""

    def bring(self, lanes: Sequence[Lane]) -> None:
        """Serves lanes of which the ledger says that runs wait there: no permit came for them."""

    def look_after(self) -> None:
        """What has to be looked at now and then."""


class HostPool:
    """The host's own children, one run each."""

    look_every: float | None = None

    def __init__(self, c: Any, runtime: Runtime) -> None:
        self.c, self.runtime = c, runtime
        # After a reconnect: what runs goes on.
        self.running: dict[Any, float] = {
            request: time.monotonic()
            for request in list(worker_state.active_requests)
            if request.name == NAME
        }
        # Of them those whose permits are acked although they go on.
        self.acked: set[Any] = set()

    def room(self) -> int:
        self.running = {
            request: since
            for request, since in self.running.items()
            if request in worker_state.reserved_requests or request in worker_state.active_requests
        }
        foreign = sum(1 for request in list(worker_state.active_requests) if request.name != NAME)
        return min(self.runtime.table.size, self._most_children()) - len(self.running) - foreign

    def _most_children(self) -> int:
        """Those the pool has, or may have at once: who operates the worker can have changed both."""
        may_have = getattr(self.c.controller.autoscaler, "max_concurrency", 0)
        return max(int(self.c.pool.num_processes), int(may_have or 0))

    def let_in(self, message: Any, over: Callable[[], None]) -> None:
        """Through the host's own strategy, so that pools and events see it like any task; its request is our own."""
        if self.c.controller.time_limit or self.c.controller.soft_time_limit:
            message.headers["timelimit"] = [NO_LIMIT, NO_LIMIT]

        counted = self.runtime.table.runs_counted

        def settle(*_arguments: Any) -> None:
            over()
            if self.runtime.table.runs_counted != counted:
                self._go_on(message)

        self.c.strategies[NAME](message, None, settle, settle, [self._let_in_as])

    def _go_on(self, message: Any) -> None:
        """A permit stands for what is in its lane, but a child that counts its runs does one of them."""
        lane = lane_named(message.headers.get(LANE_HEADER))
        if lane is not None and self.room() > 0:
            self.let_in(own_permit(lane), lambda: None)

    def _let_in_as(self, request: Any) -> None:
        """An autoscaler makes the pool larger when it hears of a request. The run waits for a child until it does,
        so a failure of the host's is no reason to put the permit aside."""
        self.running[request] = time.monotonic()
        for hears in tuple(self.c.on_task_message):
            try:
                hears(request)
            except Exception:
                logger.exception("Permits: the worker could not be told of one")

    def bring(self, lanes: Sequence[Lane]) -> None:
        for number in range(self.room() if lanes else 0):
            self.let_in(own_permit(lanes[number % len(lanes)]), lambda: None)

    def look_after(self) -> None:
        self._ack_long_ones(time.monotonic())
        self._replace_lost_children()

    def _ack_long_ones(self, now: float) -> None:
        """A permit must not grow as old as its run: the broker would end the channel (consumer time-out). Celery is
        not told: it has a cold shutdown wait for the end of what is acked."""
        self.acked &= self.running.keys()
        for request, since in self.running.items():
            if now - since > ACKED_AFTER_SECONDS and request not in self.acked:
                request.on_ack(logger, request.connection_errors)
                self.acked.add(request)

    def _replace_lost_children(self) -> None:
        """The pool itself looks after its children every five seconds; so long the next attempt would wait."""
        lost = [request for request in self.running if is_lost(request)]
        if lost:
            self.c.pool.maintain_pool()
        for request in lost:
            del self.running[request]


class PermitRequest(Request):
    """What Celery knows of a permit that was let in."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        # Read already: the child would decode it by what the host accepts, which need not be JSON.
        self._body, self._content_type, self._content_encoding = NO_ARGUMENTS, None, None

    def cancel(self, *arguments: Any, **options: Any) -> None:
        """Under `worker_cancel_long_running_tasks_on_connection_loss` Celery ends what the broker will send again.
        A run goes on without its permit; only when the worker is told to end at once does it end too."""
        if is_cold_shutdown():
            super().cancel(*arguments, **options)
        else:
            logger.warning("Permits: the run of permit %s is not terminated, it goes on without", self.id)


class FeedsChildren:
    """The children of the feed beside the worker. They are not asked whether they are through: the slots say it."""

    look_every: float | None = 0.02

    def __init__(self, runtime: Runtime) -> None:
        self.table = runtime.table
        self.doorbell = Doorbell(runtime.folder)

    def room(self) -> int:
        """One more than is free: a child at the end of its turn goes on with another lane without a pause."""
        free = sum(state == FREE for state in self.table.states())
        return max(1, free) - self.doorbell.unread()

    def let_in(self, message: Any, over: Callable[[], None]) -> None:
        lane = lane_named(message.headers.get(LANE_HEADER))
        if lane is not None and not self.doorbell.ring(lane):
            logger.warning("Permits: the feed reads none; the heartbeat will bring somebody to the run")
        over()

    def bring(self, lanes: Sequence[Lane]) -> None:
        """The children read the ledger's answer themselves."""

    def look_after(self) -> None:
        pass


def own_permit(lane: Lane) -> Any:
    """As one from the broker, for a run whose own was lost, wiped out or went to a worker without a free slot."""
    identity = str(uuid4())
    return Message(
        body=NO_CALLBACKS,
        content_type=JSON,
        content_encoding="utf-8",
        headers={"task": NAME, "id": identity, LANE_HEADER: f"{lane.pool_id}:{lane.tenant_id}"},
        properties={"correlation_id": identity, "reply_to": ""},
        delivery_info={"exchange": "", "routing_key": lane.queue, "priority": None, "redelivered": False},
        accept={JSON},
    )


def is_cold_shutdown() -> bool:
    """Celery carries it out within the handler of the signal that asks for it."""
    return bool(vars(celery_log).get("_in_sighandler"))


def is_lost(request: Any) -> bool:
    """The child that worked on it died."""
    pid = getattr(request, "worker_pid", None)
    return pid is not None and not processes.alive(pid, processes.started(pid))
