"""The one task a permit names. Only Beatkeeper's workers know it; anywhere else a permit is dropped unread."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.app.task import Task

from .ledger import Lane
from .work import work_on_lane

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

NAME = "beatkeeper.run"
LANE_HEADER = "beatkeeper_lane"
LONGEST_ID = 10
# Other lanes and the host's own tasks get their turn: what is left has further permits, or the heartbeat names it.
TURN_SECONDS = 1.0


class PermitTask(Task):  # type: ignore[type-arg]
    """Free of what the host asks of its own tasks: base class, annotations, limits, stored results."""

    abstract = True
    # By name: a process that only sends tasks needs no worker's side.
    Request = f"{__package__}.admission:PermitRequest"
    acks_late = True
    reject_on_worker_lost = True
    # Celery would send a permit of its own, to a queue that it declares.
    retry_on_worker_lost = False
    # The first is what Celery before 5.7 knows.
    acks_on_failure_or_timeout = acks_on_failure = acks_on_timeout = True
    ignore_result = True
    store_errors_even_if_ignored = False
    track_started = False
    send_events = False
    typing = False

    @classmethod
    def annotate(cls) -> None:
        pass


def register_permit_task(app: Celery) -> None:
    """Once: the app may have another keeper later."""
    from .app import keeper_of

    def run(self: Any) -> None:
        lane, bench = lane_of(self.request), keeper_of(app).bench
        if bench is None:
            logger.warning("A permit came to a process that takes no runs")
        elif lane is not None:
            work_on_lane(bench, lane, TURN_SECONDS)

    app.task(name=NAME, base=PermitTask, bind=True, shared=False)(run)


def lane_of(request: Any) -> Lane | None:
    return lane_named(request.get(LANE_HEADER))


def lane_named(header: Any) -> Lane | None:
    """None: not a permit we understand. It is acked; what it stood for is served by the heartbeat."""
    pool, _, tenant = str(header or "").partition(":")
    if not all(number.isdecimal() and len(number) <= LONGEST_ID for number in (pool, tenant)):
        return None
    return Lane(id=0, pool_id=int(pool), tenant_id=int(tenant), queue="")
