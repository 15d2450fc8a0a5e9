"""Recover what others left behind, apply what waits in tables, and keep house; one scheduler at a time."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import close_old_connections

from jobs.calendars.reschedule import rearm_calendars
from jobs.declarations import apply_declarations
from jobs.services.auto_resume import resume_due_jobs
from runs.scheduler import maintenance
from runs.scheduler.observer import PassKind
from runs.scheduler.partitions.lock_session import RECOVERY, LockSession
from runs.scheduler.partitions.share import SliceHolder
from runs.scheduler.recovery.dead_runs import announce_dead_runs
from runs.scheduler.recovery.recover import Recovered, RecoveryMemory, recover_once
from runs.services import redrives
from runs.services.requested_runs import apply_requests
from runs.sql import rows

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.25
RECOVERY_SECONDS = 0.25
DEAD_RUNS_SECONDS = 0.5
DECLARATIONS_SECONDS = 1.0
MAX_DECLARATIONS = 20
SERVICES_SECONDS = 0.5
ALLOWANCES_SECONDS = 60.0
DAY_SECONDS = 86_400.0


class RecoveryLoop(SliceHolder):
    """The loop of the one scheduler that holds the recovery slice; the others wait for it."""

    def __init__(
        self, session: LockSession, memory: RecoveryMemory, runs_are_ready: Callable[[], None]
    ) -> None:
        super().__init__(session, RECOVERY, [0])
        self.memory = memory
        self.runs_are_ready = runs_are_ready
        self._put_off: set[int] = set()
        self._requests_put_off: set[UUID] = set()
        maintenance.keep_partitions(session.connection, self.now())

    def step(self) -> float:
        self.balance()
        if not self.slices.held:
            return IDLE_SECONDS
        began, now = time.monotonic(), self.now()
        done = Recovered()
        with self.memory.batch.one_pass():
            done = recover_once(self.session.connection, self.memory, now)
        self.finish_pass(PassKind.RECOVERY, done, began)
        if done.promoted or done.retried or done.withdrawn or done.released:
            self.runs_are_ready()
        if self.memory.is_due("dead runs", DEAD_RUNS_SECONDS, now):
            announce_dead_runs(self.session.connection, self.memory.dead_runs)
        if self.memory.is_due("declarations", DECLARATIONS_SECONDS, now):
            apply = partial(apply_declarations, MAX_DECLARATIONS, self._put_off)
            self._serve("declarations_wait", apply, "declarations could not be applied")
            serve_requests = partial(apply_requests, put_off=self._requests_put_off)
            self._serve("run_requests_wait", serve_requests, "requests for runs could not be carried out")
        if self.memory.is_due("services", SERVICES_SECONDS, now):
            self._serve("pauses_are_over", resume_due_jobs, "paused jobs could not be resumed")
            self._serve("calendars_wait", rearm_calendars, "clocks could not follow their calendars")
            self._serve("redrives_are_due", self._redrive, "dead runs could not be redriven")
        if self.memory.is_due("allowances", ALLOWANCES_SECONDS, now):
            maintenance.purge_allowances(self.session.connection, now)
        if self.memory.is_due("maintenance", DAY_SECONDS, now):
            maintenance.keep_partitions(self.session.connection, now)
            maintenance.purge(self.session.connection, now)
            maintenance.analyze_in_background(settings.DATABASE_DIRECT_URL)
        return RECOVERY_SECONDS

    def _serve(self, question: str, act: Callable[[], Any], failed: str) -> None:
        """Act if the statement `question` finds work.

        The services run on Django's connection, as for everybody else; their failures do not end recovery.
        """
        if not rows(self.session.connection, question)[0][0]:
            return
        try:
            close_old_connections()
            act()
        except Exception:  # the next round tries again
            logger.exception("%s", failed)

    def _redrive(self) -> None:
        if redrives.work_off():
            self.runs_are_ready()
