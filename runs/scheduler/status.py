"""Write a scheduler's status every few seconds, for people and metrics to read; nothing is decided by it."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from runs.scheduler.loop import Loop
from runs.scheduler.observer import FinishedPass, PassTotals
from runs.scheduler.partitions.lock_session import LockSession
from runs.sql import change, rows
from scheduler_project.sdk.ledger import clock_skew
from scheduler_project.sdk.ledger.clock_skew import RoundTrip

logger = logging.getLogger(__name__)

STATUS_SECONDS = 2.0
# A living scheduler has written its status within this time.
SILENT_SECONDS = 5 * STATUS_SECONDS
# A loop without a successful pass for this long is in trouble; loops make several a second.
STUCK_SECONDS = 15.0


class SchedulerStatus:
    """The status of one incarnation of a scheduler, which outlives its database sessions."""

    def __init__(self, loops: Sequence[Loop], totals: PassTotals | None = None) -> None:
        self.loops = loops
        self.totals = totals or PassTotals()
        self.incarnation = uuid4()
        self.skew_ms: float | None = None

    def values(self) -> dict[str, Any]:
        held = {loop.name: loop.holds for loop in self.loops}
        return {
            "incarnation": self.incarnation,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job_slices": held.get("trigger", 0),
            "pools": held.get("dispatch", 0),
            "runs_recovery": held.get("recovery", 0) > 0,
            "loops": Jsonb({loop.name: describe_loop(loop) for loop in self.loops}),
            "passes": Jsonb(self.totals.as_json()),
            "skew_ms": self.skew_ms,
        }

    def note_skew(self, skew_ms: float | None) -> None:
        if skew_ms is None:
            return
        was_far = abs(self.skew_ms or 0.0) > clock_skew.LIMIT_MS
        if abs(skew_ms) > clock_skew.LIMIT_MS and not was_far:
            logger.warning(
                "this machine's clock is %s: times are met all the same, its log lines mislead",
                clock_skew.describe(skew_ms),
            )
        self.skew_ms = skew_ms


def describe_loop(loop: Loop) -> dict[str, float | None]:
    since = None if loop.last_success is None else round(monotonic() - loop.last_success, 3)
    return {
        "success_seconds_ago": since,
        "longest_seconds": round(loop.longest.seconds, 3),
        "failures": loop.failures,
    }


def troubles_of(loops: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the loops in trouble, each with the seconds since its last success, if it ever had one."""
    states = {name: (loop.get("success_seconds_ago"), loop.get("failures")) for name, loop in loops.items()}
    return {
        name: since
        for name, (since, failures) in states.items()
        if failures or since is None or since > STUCK_SECONDS
    }


class StatusLoop:
    def __init__(self, session: LockSession, status: SchedulerStatus) -> None:
        self.connection = session.connection
        self.status = status
        self.finished: list[FinishedPass] = []
        # What is written again in two seconds need not wait for the disk.
        self.connection.execute("SET synchronous_commit = off")

    def step(self) -> float:
        sent = RoundTrip()
        ((now,),) = rows(self.connection, "write_scheduler_status", self.status.values())
        self.status.note_skew(sent.skew_ms(now))
        return STATUS_SECONDS

    def holds(self) -> int:
        return 0

    def end(self) -> None:
        change(self.connection, "scheduler_leaves", {"incarnation": self.status.incarnation})
