"""The bootstep of a worker's consumer that brings wake-ups, or what takes their place."""

from __future__ import annotations

import logging
from contextlib import ExitStack
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
        self._closing = ExitStack()
        super().__init__(c, **options)

    def include_if(self, c: Any) -> bool:
        return getattr(c.controller, "beatkeeper", None) is not None

    def start(self, c: Any) -> None:
        runtime = c.controller.beatkeeper.runtime
        if not carries_wakeups(c.app):
            logger.info("This broker carries no wake-ups: runs are fetched from the ledger")
        elif runtime.config.keeps_feed:
            self.stop(c)
            loop = EventLoop()
            self._serve(WakeupIntake(c, loop, runtime, FeedPool(runtime)))
            loop.start()
            # Closed first: it calls nothing of an intake that is closed.
            self._closing.callback(loop.close)
        elif c.hub is None:
            logger.info("This worker has no event loop: runs are fetched from the ledger without wake-ups")

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Start anew on every (re)connect of the host, whose loop starts with no readers and no timers."""
        runtime = c.controller.beatkeeper.runtime
        if runtime.config.keeps_feed:
            return
        self.stop(c)
        pool = HostPool(c, runtime)
        if carries_wakeups(c.app):
            self._serve(WakeupIntake(c, hub, runtime, pool))
        else:
            self._serve(QueueServer(hub, runtime, pool))

    def _serve(self, server: QueueServer) -> None:
        server.start()
        self._closing.callback(server.close)

    def stop(self, c: Any) -> None:
        self._closing.close()

    shutdown = stop
