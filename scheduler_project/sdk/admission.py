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

from celery.worker import state as worker_state
from kombu.message import Message

from . import processes
from .doorbell import Doorbell
from .ledger import Lane
from .permit_task import LANE_HEADER, NAME, lane_named
from .runtime import Runtime
from .slots import FREE

logger = logging.getLogger(__name__)

ACKED_AFTER = 60.0
# Far beyond any run: the host's own limit, given to its pool, must not end ours.
NO_LIMIT = 10 * 365 * 86_400
JSON = "application/json"
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
        self.running: dict[Any, float] = {}

    def room(self) -> int:
        self.running = {
            request: since
            for request, since in self.running.items()
            if request in worker_state.reserved_requests
        }
        foreign = sum(1 for request in list(worker_state.active_requests) if request.name != NAME)
        return self.runtime.table.size - len(self.running) - foreign

    def let_in(self, message: Any, over: Callable[[], None]) -> None:
        """Through the host's own strategy, so that custom requests, pools and events see it like any task."""
        if self.c.controller.time_limit or self.c.controller.soft_time_limit:
            message.headers["timelimit"] = [NO_LIMIT, NO_LIMIT]

        def settle(*_arguments: Any) -> None:
            over()

        self.c.strategies[NAME](message, None, settle, settle, [self._let_in_as])

    def _let_in_as(self, request: Any) -> None:
        self.running[request] = time.monotonic()

    def bring(self, lanes: Sequence[Lane]) -> None:
        for number in range(self.room() if lanes else 0):
            self.let_in(own_permit(lanes[number % len(lanes)]), lambda: None)

    def look_after(self) -> None:
        self._ack_long_ones(time.monotonic())
        self._replace_lost_children()

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


def is_lost(request: Any) -> bool:
    """The child that worked on it died."""
    pid = getattr(request, "worker_pid", None)
    return pid is not None and not processes.alive(pid, processes.started(pid))
