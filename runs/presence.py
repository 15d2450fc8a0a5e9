"""What a scheduler tells of itself every few seconds, for people to read; nothing is decided by it."""

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from psycopg.types.json import Jsonb

from runs.loops import Loop
from runs.queries import change, rows
from runs.slices import LockSession
from scheduler_project.sdk import clock_skew
from scheduler_project.sdk.clock_skew import RoundTrip

logger = logging.getLogger(__name__)

TELL_SECONDS = 2.0
# Of a living one.
SILENT_SECONDS = 5 * TELL_SECONDS
# Without a successful pass of a loop; they have several a second.
STUCK_SECONDS = 15.0


class Presence:
    """One incarnation of a scheduler; kept from session to session, begun anew by none of its failures."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        self.loops = loops
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
            "rescues": held.get("rescue", 0) > 0,
            "loops": Jsonb({loop.name: told_of(loop) for loop in self.loops}),
            "skew_ms": self.skew_ms,
        }

    def notice_skew(self, skew_ms: float | None) -> None:
        if skew_ms is None:
            return
        was_far = abs(self.skew_ms or 0.0) > clock_skew.LIMIT_MS
        if abs(skew_ms) > clock_skew.LIMIT_MS and not was_far:
            logger.warning(
                "this machine's clock is %s: times are met all the same, its log lines mislead",
                clock_skew.in_words(skew_ms),
            )
        self.skew_ms = skew_ms


def told_of(loop: Loop) -> dict[str, float | None]:
    since = None if loop.last_success is None else round(monotonic() - loop.last_success, 3)
    return {
        "success_seconds_ago": since,
        "longest_seconds": round(loop.longest.seconds, 3),
        "failures": loop.failures,
    }


def troubles_of(loops: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """By loop, how many seconds before it had last succeeded, if ever, of those that are in trouble."""
    told = {name: (loop.get("success_seconds_ago"), loop.get("failures")) for name, loop in loops.items()}
    return {
        name: since
        for name, (since, failures) in told.items()
        if failures or since is None or since > STUCK_SECONDS
    }


class Telling:
    def __init__(self, session: LockSession, presence: Presence) -> None:
        self.connection = session.connection
        self.presence = presence
        # What is told again in two seconds need not wait for the disk.
        self.connection.execute("SET synchronous_commit = off")

    def step(self) -> float:
        asked = RoundTrip()
        ((now,),) = rows(self.connection, "tell_of_scheduler", self.presence.values())
        self.presence.notice_skew(asked.skew_ms(now))
        return TELL_SECONDS

    def holds(self) -> int:
        return 0

    def end(self) -> None:
        change(self.connection, "scheduler_leaves", {"incarnation": self.presence.incarnation})
