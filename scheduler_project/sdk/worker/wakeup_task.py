"""The one task that a wake-up names. Only Beatkeeper's workers know it; others drop a wake-up unread."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from celery.app.task import Task

from ..ledger.interface import WorkQueue
from ..registry import keeper_of

logger = logging.getLogger(__name__)

NAME = "beatkeeper.run"
QUEUE_HEADER = "beatkeeper_queue"
MAX_ID_DIGITS = 10
# After it other queues and the host's own tasks get their turn: what is left has further wake-ups, or the heartbeat
# names its queue.
TURN_SECONDS = 1.0


class WakeupTask(Task):  # type: ignore[type-arg]
    """A task free of what the host sets for its own tasks: base class, annotations, limits, stored results."""

    abstract = True
    # By name: a process that only sends tasks does not import the worker's side.
    Request = f"{__package__}.admission:WakeupRequest"
    acks_late = True
    reject_on_worker_lost = True
    # Celery would send a wake-up of its own, to a queue that it declares.
    retry_on_worker_lost = False
    # Celery before 5.7 knows the first only.
    acks_on_failure_or_timeout = acks_on_failure = acks_on_timeout = True
    ignore_result = True
    store_errors_even_if_ignored = False
    track_started = False
    send_events = False
    typing = False

    @classmethod
    def annotate(cls) -> None:
        pass


def register_wakeup_task(app: Celery) -> None:
    """Register the task once for an app, which may have another keeper later."""

    def run(self: Any) -> None:
        queue, loop = queue_named(self.request.get(QUEUE_HEADER)), keeper_of(app).claim_loop
        if loop is None:
            logger.warning("A wake-up came to a process that takes no runs")
        elif queue is not None:
            loop.work_on_queue(queue, TURN_SECONDS)

    app.task(name=NAME, base=WakeupTask, bind=True, shared=False)(run)


def queue_named(header: Any) -> WorkQueue | None:
    """Read the header of a wake-up; None if it names no queue.

    Such a wake-up is acked; the heartbeat names the queues of runs that wait.
    """
    pool, _, tenant = str(header or "").partition(":")
    if not all(number.isdecimal() and len(number) <= MAX_ID_DIGITS for number in (pool, tenant)):
        return None
    return WorkQueue(id=0, pool_id=int(pool), tenant_id=int(tenant), broker_queue="")
