"""What nobody else will do: wake what waited, take back what a lost worker held, look again at what is blocked.

One scheduler at a time does it. It may be late; it must never be early: a run is taken from a worker only
when the worker cannot be working on it any more, and after an outage of our own everybody gets a lease of grace.
"""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from runs import transitions
from runs.queries import Connection, change, rows
from runs.transitions import LostAttempt
from scheduler_project.sdk.outcomes import WORKER_LOST, stated_failure
from scheduler_project.sdk.retries import DEAD, decide

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 2.0
CLAIMS_SECONDS = 1.0
# Longer without a successful pass, and heartbeats may not have been flowing either.
LONGEST_GAP_SECONDS = 10.0
MOST_AT_ONCE = 500
MOST_JOBS_IN_A_SWEEP = 200
MASS_LOSS = 3
MASS_LOSS_SHARE = 0.2
LOST_LINE = "The worker was lost."
NO_JOB = UUID(int=0)


@dataclass(slots=True)
class RescueMemory:
    """Kept from pass to pass by whoever rescues. A new one trusts nothing for one lease."""

    trusted_from: datetime | None = None
    last_pass: datetime | None = None
    last_done: dict[str, datetime] = field(default_factory=dict)
    swept_to: dict[str, UUID] = field(default_factory=dict)

    def begin(self, now: datetime) -> None:
        if self.last_pass is None or now - self.last_pass > timedelta(seconds=longest_gap()):
            self.trusted_from = now + lease()

    def end(self, now: datetime) -> None:
        self.last_pass = now

    def trusts(self, now: datetime) -> bool:
        return self.trusted_from is not None and now >= self.trusted_from

    def heard(self, node: "Node") -> datetime:
        """Not before our own outage ended: until then nobody could be heard, however long its lease."""
        assert self.trusted_from is not None  # noqa: S101 - nobody is lost before there is trust
        return max(node.last_beat_at, self.trusted_from - lease())

    def is_due(self, what: str, seconds: float, now: datetime) -> bool:
        last = self.last_done.get(what)
        if last is not None and now - last < timedelta(seconds=seconds):
            return False
        self.last_done[what] = now
        return True


@dataclass(slots=True)
class Rescued:
    promoted: int = 0
    held_nodes: int = 0
    lost_nodes: int = 0
    lost_attempts: int = 0
    released: int = 0


class Node(NamedTuple):
    incarnation: UUID
    pool_id: int
    name: str
    last_beat_at: datetime
    held_until: datetime | None
    lease_seconds: float

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


def rescue_once(connection: Connection, memory: RescueMemory, now: datetime) -> Rescued:
    """One pass; each step is a short transaction of its own.

    1. Wake what waited long enough.
    2. Unless a brake is on: lose the nodes that kept silent for their lease, then the attempts nobody works on.
    3. Look again at what is blocked.
    """
    done = Rescued()
    memory.begin(now)
    done.promoted = transitions.promote_delayed(connection, now, MOST_AT_ONCE)
    if memory.trusts(now):
        _lose_nodes(connection, memory, now, done)
        if memory.is_due("claims", CLAIMS_SECONDS, now):
            done.lost_attempts = _lose_claims(connection, now)
    if memory.is_due("blocked", SWEEP_SECONDS, now):
        done.released = _look_again(connection, memory, now)
        done.released += transitions.withdraw_unknown(connection, now, settings.LEASE_SECONDS)
    memory.end(now)
    return done


def lease() -> timedelta:
    return timedelta(seconds=settings.LEASE_SECONDS)


def longest_gap() -> float:
    return min(LONGEST_GAP_SECONDS, settings.LEASE_SECONDS / 2)


def _lose_nodes(connection: Connection, memory: RescueMemory, now: datetime, done: Rescued) -> None:
    nodes = [Node(*row) for row in rows(connection, "silent_nodes")]
    silent = [node for node in nodes if memory.heard(node) <= now - node.lease]
    if not silent:
        return
    held = _mass_loss(nodes, silent, now)
    fresh = [node.incarnation for node in held if node.held_until is None]
    values = {"now": now}
    if fresh:
        logger.critical("ALARM: %d workers fell silent at once and are held for one more lease", len(fresh))
        change(connection, "hold_nodes", {**values, "nodes": fresh})
        done.held_nodes = len(fresh)
    kept = {node.incarnation for node in held}
    lost = [node.incarnation for node in silent if node.incarnation not in kept]
    if lost:
        for _, name, pool_id in rows(connection, "lose_nodes", {**values, "nodes": lost}):
            logger.warning("worker %s of pool %d is lost: no heartbeat for its lease", name, pool_id)
            done.lost_nodes += 1


def _mass_loss(nodes: Iterable[Node], silent: Sequence[Node], now: datetime) -> list[Node]:
    """Those of a pool that fell silent together, as after a network failure; their hold is never renewed."""
    living = Counter(node.pool_id for node in nodes)
    pools: defaultdict[int, list[Node]] = defaultdict(list)
    for node in silent:
        pools[node.pool_id].append(node)
    held = []
    for pool_id, members in pools.items():
        newest = max(node.last_beat_at for node in members)
        together = [node for node in members if newest - node.last_beat_at <= node.lease]
        if len(together) >= MASS_LOSS and len(together) > MASS_LOSS_SHARE * living[pool_id]:
            held += [node for node in together if node.held_until is None or node.held_until > now]
    return held


def _lose_claims(connection: Connection, now: datetime) -> int:
    reasons: dict[str, str] = {
        "orphans": LOST_LINE,
        "unlisted_claims": "The worker no longer had the run in hand.",
        "overdue_claims": "The worker did not end the run at its time limit.",
    }
    lost = 0
    for name, line in reasons.items():
        found = rows(connection, name, {"most": MOST_AT_ONCE, "now": now})
        if found:
            lost += len(lose(connection, dict(found), line))
    return lost


def lose(connection: Connection, claims: dict[UUID, int], line: str) -> dict[UUID, str]:
    """Ends these claims, by run and claim_seq; a claim that is another by now is left alone."""
    with connection.transaction():
        details = rows(connection, "claims_to_decide", {"ids": sorted(claims)})
        decided = [_decide(*row) for row in details if row[1] == claims[row[0]]]
        states = transitions.lose_attempts(connection, decided, line)
    for run_id, state in states.items():
        logger.warning("run %s lost its attempt and is %s: %s", run_id, state, line)
    return states


def _decide(run_id: UUID, claim_seq: int, attempt: int, losses: int, retry: str) -> LostAttempt:
    if losses + 1 >= settings.MAX_WORKER_LOSSES:
        return LostAttempt(run_id, claim_seq, DEAD, 0.0)
    epoch = datetime.fromtimestamp(0).astimezone()
    outcome = stated_failure(WORKER_LOST, "WorkerLost", LOST_LINE, epoch, epoch)
    verdict = decide(outcome, attempt, json.loads(retry))
    return LostAttempt(run_id, claim_seq, verdict.state, verdict.delay)


def _look_again(connection: Connection, memory: RescueMemory, now: datetime) -> int:
    """Bounded: so many jobs for each reason, and the next sweep goes on where this one ended."""
    release: dict[str, Callable[[Sequence[UUID]], int]] = {
        transitions.CONCURRENCY: lambda jobs: transitions.release_gated(connection, jobs),
        transitions.PAUSED: lambda jobs: transitions.release_unpaused(connection, jobs, MOST_AT_ONCE),
        transitions.UNKNOWN_TARGET: lambda jobs: transitions.release_known(
            connection, jobs, now, MOST_AT_ONCE
        ),
    }
    for withdrawn in (transitions.NOT_ALLOWED, transitions.NOT_EXPORTED):
        release[withdrawn] = partial(_release_permitted, connection, withdrawn)
    released = 0
    for reason, let_go in release.items():
        after = memory.swept_to.get(reason, NO_JOB)
        values = {"reason": reason, "after": after, "most": MOST_JOBS_IN_A_SWEEP}
        jobs = [job for (job,) in rows(connection, "jobs_blocked_for", values)]
        memory.swept_to[reason] = jobs[-1] if len(jobs) == MOST_JOBS_IN_A_SWEEP else NO_JOB
        released += let_go(jobs)
    return released


def _release_permitted(connection: Connection, reason: str, jobs: Sequence[UUID]) -> int:
    return transitions.release_permitted(connection, jobs, reason, MOST_AT_ONCE)
