"""The bootstep of a worker's consumer that brings wake-ups, or what takes their place."""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps

from .admission import FeedPool, HostPool
from .event_loop import EventLoop
from .queues_with_work import QueueServer
from .wakeup_connection import carries_wakeups
from .wakeup_intake import WakeupIntake

logger = logging.getLogger(__name__)


class WakeupConsumer(bootsteps.StartStopStep):
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **options: Any) -> None:
        self.intake: QueueServer | None = None
        self.loop: EventLoop | None = None
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:
        return getattr(c.controller, "beatkeeper", None) is not None

    def start(self, c: Any) -> None:
        runtime = c.controller.beatkeeper.runtime
        if not carries_wakeups(c.app):
            logger.info("This broker carries no wake-ups: runs are fetched from the ledger")
        elif runtime.config.keeps_feed:
            self.stop(c)
            self.loop = EventLoop()
            self.intake = WakeupIntake(c, self.loop, runtime, FeedPool(runtime))
            self.intake.start()
            self.loop.start()
        elif c.hub is None:
            logger.info("This worker has no event loop: runs are fetched from the ledger without wake-ups")

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Start anew on every (re)connect of the host, whose loop starts with no readers and no timers."""
        runtime = c.controller.beatkeeper.runtime
        if runtime.config.keeps_feed:
            return
        self.stop(c)
        pool = HostPool(c, runtime)
        self.intake = (
            WakeupIntake(c, hub, runtime, pool) if carries_wakeups(c.app) else QueueServer(hub, runtime, pool)
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
