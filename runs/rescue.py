"""What nobody else will do: wake what waited, take back what a lost worker held, look again at what is blocked.

One scheduler at a time does it. It may be late; it must never be early: a run is taken from a worker only
when the worker cannot be working on it any more, and after an outage of our own everybody gets a lease of grace.
"""

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from runs import callbacks, overlap, transitions
from runs.pace import Pace
from runs.queries import Connection, change, rows
from runs.retry_budgets import let_retries_go
from runs.sweep import SWEEP_SECONDS, Sweep, look_again
from runs.transitions import LostAttempt
from scheduler_project.sdk.outcomes import WORKER_LOST, stated_failure
from scheduler_project.sdk.retries import DEAD, DELAYED, decide, most_losses

logger = logging.getLogger(__name__)

CLAIMS_SECONDS = 1.0
# Longer without a successful pass, and heartbeats may not have been flowing either.
LONGEST_GAP_SECONDS = 10.0
MOST_AT_ONCE = 500
LONGEST_PROMOTION_SECONDS = 0.3
MASS_LOSS = 3
MASS_LOSS_SHARE = 0.2
LOST_LINE = "The worker was lost."


@dataclass(slots=True)
class RescueMemory:
    """Kept from pass to pass by whoever rescues. A new one trusts nothing for one lease."""

    trusted_from: datetime | None = None
    last_pass: datetime | None = None
    last_done: dict[str, datetime] = field(default_factory=dict)
    sweep: Sweep = field(default_factory=Sweep)
    pace: Pace = field(default_factory=lambda: Pace("rescue", MOST_AT_ONCE))

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
        # A clock that was set back would make everything wait until it has caught up.
        if last is not None and timedelta(0) <= now - last < timedelta(seconds=seconds):
            return False
        self.last_done[what] = now
        return True


@dataclass(slots=True)
class Rescued:
    promoted: int = 0
    # Of them and of earlier ones, those that the budgets of their tenants let go.
    retried: int = 0
    held_nodes: int = 0
    lost_nodes: int = 0
    lost_attempts: int = 0
    missed_callbacks: int = 0
    released: int = 0


class Node(NamedTuple):
    incarnation: UUID
    pool_id: int
    name: str
    last_beat_at: datetime
    held_until: datetime | None
    lease_seconds: float
    # Of those that came with a tenant's key.
    tenant_id: int | None

    @property
    def team(self) -> tuple[int, int | None]:
        """Workers of one pool and for the same tenants: what others say of theirs does not bear on them."""
        return self.pool_id, self.tenant_id

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


def rescue_once(connection: Connection, memory: RescueMemory, now: datetime) -> Rescued:
    """One pass; each step is a short transaction of its own.

    1. Wake what waited long enough; retries beyond their tenant's budget wait on.
    2. Unless a brake is on: lose the nodes that kept silent for their lease, then the attempts nobody works on and
       those whose callback did not come.
    3. Look again at what is blocked.
    """
    done = Rescued()
    memory.begin(now)
    done.promoted = _promote(connection, now, memory.pace.size)
    done.retried = let_retries_go(connection, now, memory.pace.size)
    if memory.trusts(now):
        _lose_nodes(connection, memory, now, done)
        if memory.is_due("claims", CLAIMS_SECONDS, now):
            done.lost_attempts = _lose_claims(connection, now, memory.pace.size)
            done.missed_callbacks = callbacks.give_up(connection, now, memory.pace.size)
    if memory.is_due("blocked", SWEEP_SECONDS, now):
        memory.sweep.begin()
        done.released = transitions.withdraw_unknown(connection, now, settings.LEASE_SECONDS)
    done.released += look_again(connection, memory.sweep, now, memory.pace.size)
    memory.end(now)
    return done


def _promote(connection: Connection, now: datetime, most: int) -> int:
    """All whose time has come, as far as the time of a pass goes: a flexible window makes many at once."""
    until = time.monotonic() + LONGEST_PROMOTION_SECONDS
    promoted = count = transitions.promote_delayed(connection, now, most)
    while count == most and time.monotonic() < until:
        count = transitions.promote_delayed(connection, now, most)
        promoted += count
    return promoted


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
    """Those of a team that fell silent together, as after a network failure; their hold is never renewed."""
    living = Counter(node.team for node in nodes)
    teams: defaultdict[tuple[int, int | None], list[Node]] = defaultdict(list)
    for node in silent:
        teams[node.team].append(node)
    held = []
    for team, members in teams.items():
        newest = max(node.last_beat_at for node in members)
        together = [node for node in members if newest - node.last_beat_at <= node.lease]
        if len(together) >= MASS_LOSS and len(together) > MASS_LOSS_SHARE * living[team]:
            held += [node for node in together if node.held_until is None or node.held_until > now]
    return held


def _lose_claims(connection: Connection, now: datetime, most: int) -> int:
    reasons: dict[str, str] = {
        "orphans": LOST_LINE,
        "unlisted_claims": "The worker no longer had the run in hand.",
        "overdue_claims": "The worker did not end the run at its time limit.",
    }
    lost = 0
    for name, line in reasons.items():
        found = rows(connection, name, {"most": most, "now": now})
        if found:
            lost += len(lose(connection, dict(found), line))
    return lost


def lose(connection: Connection, claims: dict[UUID, int], line: str) -> dict[UUID, str]:
    """Ends these claims, by run and claim_seq; a claim that is another by now is left alone.

    So is one whose job's gate somebody has: he may be about to release what waits, and we come again.
    """
    with connection.transaction():
        found = [Claimed(*row) for row in rows(connection, "claims_to_decide", {"ids": sorted(claims)})]
        busy = overlap.lock_gates(connection, {claim.job_id: True for claim in found if claim.gated})
        ours = [claim for claim in found if claim.seq == claims[claim.run_id] and claim.job_id not in busy]
        states = transitions.lose_attempts(connection, [_decide(claim) for claim in ours], line)
        gated = [claim for claim in ours if claim.gated]
        for claim in gated:
            if states.get(claim.run_id) in (DEAD, DELAYED):
                transitions.note_failure(connection, claim.job_id, claim.run_id)
        transitions.release_next(connection, list({claim.job_id for claim in gated}))
    for run_id, state in states.items():
        logger.warning("run %s lost its attempt and is %s: %s", run_id, state, line)
    return states


class Claimed(NamedTuple):
    run_id: UUID
    seq: int
    attempt: int
    losses: int
    retry: str
    job_id: UUID
    gated: bool


def _decide(claim: Claimed) -> LostAttempt:
    retry = json.loads(claim.retry)
    retry["max_losses"] = most_losses(retry, settings.MAX_WORKER_LOSSES)
    epoch = datetime.fromtimestamp(0).astimezone()
    outcome = stated_failure(WORKER_LOST, "WorkerLost", LOST_LINE, epoch, epoch)
    verdict = decide(outcome, claim.attempt, retry, losses=claim.losses)
    return LostAttempt(claim.run_id, claim.seq, verdict.state, verdict.delay)
