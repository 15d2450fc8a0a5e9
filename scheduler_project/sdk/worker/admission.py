"""The admission of wake-ups once there is room for a run: to the host's pool, or to the children of a feed.

A pool of processes runs the wake-up's task like any task of the host's. A pool of threads or greenlets does not: what
runs there cannot be killed. Its worker keeps a feed beside it, and a wake-up only wakes one of the feed's children.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from celery.utils import log as celery_log
from celery.worker import state as worker_state
from celery.worker.request import Request
from kombu.message import Message

from ..ledger.interface import WorkQueue
from ..process import processes
from ..shared.folder import Runtime
from ..shared.slot_record import FREE
from ..shared.wakeup_pipe import WakePipe
from .wakeup_message import PLAIN_BODY
from .wakeup_task import NAME, QUEUE_HEADER, queue_named

logger = logging.getLogger(__name__)

ACKED_AFTER_SECONDS = 60.0
# Far beyond any run: the host's own limit, which its pool enforces, must not end ours.
NO_LIMIT = 10 * 365 * 86_400
JSON = "application/json"
NO_ARGUMENTS: Any = ([], {}, {})


class HostPool:
    """Admit wake-ups to the host's own children, one run each. The end of each calls `done`."""

    # How often to look for room; None: the end of a wake-up says that there is some.
    look_every: float | None = None

    def __init__(self, c: Any, runtime: Runtime) -> None:
        self.c, self.runtime = c, runtime
        # After a reconnect: what runs goes on.
        self.running: dict[Any, float] = {
            request: time.monotonic()
            for request in list(worker_state.active_requests)
            if request.name == NAME
        }
        # Those of them whose wake-ups are acked although they go on.
        self.acked: set[Any] = set()

    def room(self) -> int:
        """Return how many further runs there is room for."""
        self.running = {
            request: since
            for request, since in self.running.items()
            if request in worker_state.reserved_requests or request in worker_state.active_requests
        }
        foreign = sum(1 for request in list(worker_state.active_requests) if request.name != NAME)
        # The children that the pool has, or may have: an operator may have changed both meanwhile.
        may_have = getattr(self.c.controller.autoscaler, "max_concurrency", 0)
        children = max(int(self.c.pool.num_processes), int(may_have or 0))
        return min(self.runtime.table.size, children) - len(self.running) - foreign

    def admit(self, message: Any, done: Callable[[], None]) -> None:
        """Pass the wake-up through the host's own strategy, so that pools and events see it like any task."""
        if self.c.controller.time_limit or self.c.controller.soft_time_limit:
            message.headers["timelimit"] = [NO_LIMIT, NO_LIMIT]

        counted = self.runtime.table.header.runs_counted

        def settle(*_arguments: Any) -> None:
            done()
            # A child that counts its runs has done one run of those that wait in the queue: it is served again.
            queue = queue_named(message.headers.get(QUEUE_HEADER))
            goes_on = self.runtime.table.header.runs_counted != counted and self.room() > 0
            if goes_on and queue is not None:
                self.admit(make_wakeup(queue), lambda: None)

        self.c.strategies[NAME](message, None, settle, settle, [self._note_request])

    def _note_request(self, request: Any) -> None:
        """Notify the host of a request: an autoscaler enlarges its pool by it.

        The run waits for a child until it does, so a failure of the host's is no reason to put the wake-up aside.
        """
        self.running[request] = time.monotonic()
        for notify in tuple(self.c.on_task_message):
            try:
                notify(request)
            except Exception:
                logger.exception("Wake-ups: the worker could not be notified of one")

    def serve(self, queues: Sequence[WorkQueue]) -> None:
        """Serve queues in which runs wait by the ledger's word: no wake-up came for them."""
        for number in range(self.room() if queues else 0):
            self.admit(make_wakeup(queues[number % len(queues)]), lambda: None)

    def maintain(self) -> None:
        # The wake-ups of long runs are acked, or the broker would end the channel (consumer time-out). Celery does not
        # learn of it: its cold shutdown waits for the end of what is acked.
        self.acked &= self.running.keys()
        for request, since in self.running.items():
            if time.monotonic() - since > ACKED_AFTER_SECONDS and request not in self.acked:
                request.on_ack(logger, request.connection_errors)
                self.acked.add(request)
        # The pool replaces dead children now; by itself it does so every five seconds.
        lost = [request for request in self.running if has_lost_child(request)]
        if lost:
            self.c.pool.maintain_pool()
        for request in lost:
            del self.running[request]


class WakeupRequest(Request):
    """The request by which Celery knows a wake-up that was admitted."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        # Read already: the child would decode it by what the host accepts, which need not be JSON.
        self._body, self._content_type, self._content_encoding = NO_ARGUMENTS, None, None

    def cancel(self, *arguments: Any, **options: Any) -> None:
        """Let the run go on without its wake-up, except in a cold shutdown.

        Celery calls this under `worker_cancel_long_running_tasks_on_connection_loss` for what the broker sends again.
        """
        # Celery carries a cold shutdown out within the handler of the signal that requests it.
        if vars(celery_log).get("_in_sighandler"):
            super().cancel(*arguments, **options)
        else:
            logger.warning("Wake-ups: the run of wake-up %s is not terminated, it goes on without", self.id)


class FeedPool:
    """Admit wake-ups to the children of the feed beside the worker. The slots say when they are done."""

    look_every: float | None = 0.02

    def __init__(self, runtime: Runtime) -> None:
        self.table = runtime.table
        self._wake_pipe = WakePipe(runtime.folder)

    def room(self) -> int:
        """Return one more than is free: a child at the end of its turn goes on with another queue without a pause."""
        free = sum(state == FREE for state in self.table.states())
        return max(1, free) - self._wake_pipe.unread()

    def admit(self, message: Any, done: Callable[[], None]) -> None:
        queue = queue_named(message.headers.get(QUEUE_HEADER))
        if queue is not None and not self._wake_pipe.wake(queue):
            logger.warning("Wake-ups: the feed reads none; the runs wait for a heartbeat to name their queue")
        done()

    def serve(self, queues: Sequence[WorkQueue]) -> None:
        """Do nothing: the children read the ledger's response themselves."""

    def maintain(self) -> None:
        pass


Admission = HostPool | FeedPool


def make_wakeup(queue: WorkQueue) -> Any:
    """Make a wake-up for a run whose own was lost, wiped out or went to a worker without a free slot."""
    identity = str(uuid4())
    return Message(
        body=PLAIN_BODY.decode(),
        content_type=JSON,
        content_encoding="utf-8",
        headers={"task": NAME, "id": identity, QUEUE_HEADER: f"{queue.pool_id}:{queue.tenant_id}"},
        properties={"correlation_id": identity, "reply_to": ""},
        delivery_info={
            "exchange": "",
            "routing_key": queue.broker_queue,
            "priority": None,
            "redelivered": False,
        },
        accept={JSON},
    )


def has_lost_child(request: Any) -> bool:
    pid = getattr(request, "worker_pid", None)
    return pid is not None and not processes.alive(pid, processes.started(pid))
