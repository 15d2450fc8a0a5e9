"""From ready run to permit: which runs of a pool's lanes may be claimed now.

One scheduler decides for all lanes of a pool, so shares and limits have one decider. Runs are marked queued
and that is committed; only then does a permit go out for each, and whether it arrives changes nothing but time.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from runs import shares, transitions
from runs.publish import HIGHEST_PRIORITY, Permit
from runs.queries import Connection, change, rows
from runs.shares import LaneLoad
from scheduler_project.sdk.ids import milliseconds

TURNOVER_SECONDS = 1.0
# How far ahead a lane's turnover is queued; several looks fit into it, also in a pool so large that each is slow.
LOOK_AHEAD_SECONDS = 0.3
LOOKS_AHEAD = 2.5
LONGEST_LOOK_AHEAD_SECONDS = 2.0
MOST_IN_A_PASS = 2000
CLASS_QUEUES = 8
POOL_PAUSED = "paused"
NO_LIVE_WORKER = "no live worker"
RATE_LIMIT = "rate limit"
QUOTA = "quota"


class LaneRow(NamedTuple):
    tenant_id: int
    slug: str
    weight: int
    max_running: int | None
    rate_limit: float | None
    lane_id: int | None
    queue: str
    tokens: float | None
    tokens_at: datetime | None
    reason: str
    window: int
    allowed: bool


class Candidate(NamedTuple):
    """A ready run among the best of its lane."""

    id: UUID
    tenant_id: int
    job_id: UUID
    rank: int
    target_key: str
    gated: bool
    paused: bool


@dataclass(slots=True)
class Dispatched:
    queued: int = 0
    blocked: int = 0
    permits: list[Permit] = field(default_factory=list)
    # Queues of lanes that this pass made.
    queues: list[str] = field(default_factory=list)
    # Ready runs were left, and windows may have room for them soon.
    waiting: bool = False


@dataclass(slots=True)
class LanePace:
    """What the dispatcher remembers of a lane: how fast it frees its slots, and what it had of them by weight."""

    served: float
    occupied: int = 0
    freed: deque[tuple[float, int]] = field(default_factory=deque)

    def look(self, at: float, since: float, load: LaneLoad) -> None:
        ended = max(0, self.occupied - load.running - load.queued)
        if ended and at - since > TURNOVER_SECONDS:
            ended = int(ended * TURNOVER_SECONDS / (at - since))
        if ended:
            self.freed.append((at, ended))
        while self.freed and self.freed[0][0] < at - TURNOVER_SECONDS:
            self.freed.popleft()
        self.served += load.running * (at - since) / load.weight
        self.occupied = load.running + load.queued

    def turnover(self, ahead: float) -> float:
        return sum(count for _, count in self.freed) * ahead / TURNOVER_SECONDS if self.freed else 0.0


@dataclass(slots=True)
class PoolMemory:
    """Of one pool, kept from pass to pass by whoever dispatches it; losing it costs a second of ramp-up."""

    looked_at: float = 0.0
    paces: dict[int, LanePace] = field(default_factory=dict)
    nodes: frozenset[UUID] = frozenset()
    targets: frozenset[str] = frozenset()


class Gates:
    """The gates of the jobs in question, locked, and what is occupied behind them."""

    def __init__(self, connection: Connection, jobs: Collection[UUID]) -> None:
        wanted = {"jobs": sorted(jobs)}
        self.limits: dict[UUID, int] = dict(rows(connection, "lock_gates", wanted)) if jobs else {}
        # A gate that was not locked is in somebody's hands: its runs wait for the next pass.
        self.busy = set(jobs) - set(self.limits)
        held = {"jobs": list(self.limits)}
        self.occupied: dict[UUID, int] = dict(rows(connection, "occupied_gates", held)) if self.limits else {}

    def has_room(self, job: UUID) -> bool:
        return self.occupied.get(job, 0) < self.limits[job]

    def enter(self, job: UUID) -> None:
        self.occupied[job] = self.occupied.get(job, 0) + 1


def dispatch_pool(
    connection: Connection, pool_id: int, now: datetime, memory: PoolMemory | None = None, notice: str = ""
) -> Dispatched:
    """One pass over a pool, in one transaction; the caller publishes the permits after it.

    1. Find the lanes with ready runs, and make those that are new.
    2. Share the pool's free slots out among them.
    3. Take the best of each lane in rank order; block what may not go for a reason of its own.
    4. Mark the rest queued.
    """
    memory = memory if memory is not None else PoolMemory()
    with connection.transaction():
        found = rows(connection, "pool", {"pool": pool_id})
        return (
            Pass(connection, Pool(pool_id, *found[0]), now, memory, notice).run() if found else Dispatched()
        )


class Pool(NamedTuple):
    id: int
    slug: str
    shared: bool
    paused: bool
    lanes: int
    exported: Sequence[str]


class Pass:
    def __init__(
        self, connection: Connection, pool: Pool, now: datetime, memory: PoolMemory, notice: str
    ) -> None:
        self.connection = connection
        self.pool = pool
        self.now = now
        self.memory = memory
        self.notice = notice
        self.exported = frozenset(pool.exported)
        self.done = Dispatched()
        self.ready: set[int] = set()
        self.lanes: dict[int, LaneRow] = {}
        self.loads: dict[int, LaneLoad] = {}

    def run(self) -> Dispatched:
        capacity = self._capacity()
        capacity += self._find_lanes()
        if self.pool.paused or not self.memory.nodes:
            self._stop_lanes(POOL_PAUSED if self.pool.paused else NO_LIVE_WORKER)
            return self.done
        self.done.waiting = bool(self.ready)
        turnover = int(self._weigh_lanes())
        places = shares.share_out(capacity, self.loads.values(), self.pool.lanes, turnover)
        handed = self._hand_over(self._best(places))
        self._write_lanes(handed)
        return self.done

    def _find_lanes(self) -> int:
        """Returns how many slots are taken on nodes that are no longer counted: draining ones above all."""
        values = {"pool": self.pool.id, "nodes": list(self.memory.nodes)}
        self.ready = {tenant for (tenant,) in rows(self.connection, "lanes_with_ready_runs", values)}
        counted = rows(self.connection, "occupied", values)
        self.loads = {
            tenant: LaneLoad(tenant, running=running, queued=queued, ready=tenant in self.ready)
            for tenant, running, queued, _ in counted
        }
        for tenant in self.ready - set(self.loads):
            self.loads[tenant] = LaneLoad(tenant)
        self.lanes = self._read_lanes()
        missing = [self.lanes[tenant] for tenant in sorted(self.ready) if self.lanes[tenant].lane_id is None]
        if missing:
            self._make_lanes(missing)
        return sum(elsewhere for *_, elsewhere in counted)

    def _read_lanes(self) -> dict[int, LaneRow]:
        found = rows(
            self.connection,
            "lanes",
            {"pool": self.pool.id, "shared": self.pool.shared, "tenants": list(self.loads)},
        )
        return {row[0]: LaneRow(*row) for row in found}

    def _make_lanes(self, missing: Sequence[LaneRow]) -> None:
        room = settings.DEDICATED_QUEUES - self.pool.lanes
        queues = [
            queue_name(self.pool, lane, dedicated=number < room or not self.pool.shared)
            for number, lane in enumerate(missing)
        ]
        tenants = [lane.tenant_id for lane in missing]
        change(self.connection, "make_lanes", {"pool": self.pool.id, "tenants": tenants, "queues": queues})
        self.pool = self.pool._replace(lanes=self.pool.lanes + len(missing))
        self.lanes = self._read_lanes()
        self.done.queues = [self.lanes[tenant].queue for tenant in tenants]

    def _capacity(self) -> int:
        """Slots that living workers have for us. What a worker knows never changes, so it is read once."""
        values = {"pool": self.pool.id, "now": self.now}
        nodes: dict[UUID, int] = dict(rows(self.connection, "living_nodes", values))
        if nodes.keys() != self.memory.nodes:
            self.memory.nodes = frozenset(nodes)
            known = rows(self.connection, "targets_of_nodes", {"nodes": list(nodes)})
            self.memory.targets = frozenset(target for (target,) in known)
        return sum(nodes.values())

    def _weigh_lanes(self) -> float:
        """Returns how many slots the whole pool is expected to free before the next look."""
        at = self.now.timestamp()
        since = self.memory.looked_at or at
        self.memory.looked_at = at
        before = self.memory.paces
        # A lane that comes back starts where the least served one is: nobody saves up shares while idle, and
        # nobody pays for slots that were idle otherwise.
        floor = min((before[tenant].served for tenant in self.loads if tenant in before), default=0.0)
        self.memory.paces = {tenant: before.get(tenant) or LanePace(floor) for tenant in self.loads}
        ahead = min(LONGEST_LOOK_AHEAD_SECONDS, max(LOOK_AHEAD_SECONDS, LOOKS_AHEAD * (at - since)))
        total = 0.0
        for tenant, load in self.loads.items():
            lane, pace = self.lanes[tenant], self.memory.paces[tenant]
            load.weight, load.most = lane.weight, self._most(lane, load)
            pace.look(at, since, load)
            turnover = pace.turnover(ahead)
            load.turnover, load.served = int(turnover), pace.served
            total += turnover
        return total

    def _most(self, lane: LaneRow, load: LaneLoad) -> int | None:
        if lane.max_running is None and lane.rate_limit is None:
            return None
        limits = []
        if lane.max_running is not None:
            limits.append(max(0, lane.max_running - load.running - load.queued))
        if lane.rate_limit is not None:
            limits.append(int(tokens(lane, self.now)))
        return min(limits, default=None)

    def _best(self, places: Mapping[int, int]) -> list[Candidate]:
        if not places:
            return []
        scale = min(1.0, MOST_IN_A_PASS / sum(places.values()))
        hungriest = islice(places.items(), MOST_IN_A_PASS)
        asked = {tenant: max(1, int(count * scale)) for tenant, count in hungriest}
        values = {"pool": self.pool.id, "tenants": list(asked), "places": list(asked.values())}
        return [Candidate(*row) for row in rows(self.connection, "best_ready", values)]

    def _hand_over(self, candidates: Sequence[Candidate]) -> Counter[int]:
        """Returns how many runs each lane handed over."""
        blocked = {run.id: reason for run in candidates if (reason := self._own_reason(run))}
        gates = Gates(
            self.connection, {run.job_id for run in candidates if run.gated and run.id not in blocked}
        )
        going = []
        for run in candidates:
            if run.id in blocked or run.job_id in gates.busy:
                continue
            if not run.gated:
                going.append(run.id)
            elif gates.has_room(run.job_id):
                gates.enter(run.job_id)
                going.append(run.id)
            else:
                blocked[run.id] = transitions.CONCURRENCY
        marked = transitions.mark_queued(self.connection, going)
        self.done.blocked = transitions.mark_blocked(self.connection, blocked)
        self.done.queued = len(marked)
        self.done.permits = [self._permit(run) for run in sorted(marked, key=lambda run: run.rank)]
        return Counter(run.tenant_id for run in marked)

    def _own_reason(self, run: Candidate) -> str:
        if run.paused:
            return transitions.PAUSED
        if run.target_key not in self.memory.targets:
            return transitions.UNKNOWN_TARGET
        if not self.lanes[run.tenant_id].allowed:
            return transitions.NOT_ALLOWED
        if run.target_key not in self.exported:
            return transitions.NOT_EXPORTED
        return ""

    def _permit(self, run: transitions.Queued) -> Permit:
        age = milliseconds(self.now) - run.rank
        level = age * HIGHEST_PRIORITY // (1000 * int(settings.STARVATION_BOUND_SECONDS))
        return Permit(
            queue=self.lanes[run.tenant_id].queue,
            lane=f"{self.pool.id}:{run.tenant_id}",
            priority=max(0, min(HIGHEST_PRIORITY, level)),
        )

    def _write_lanes(self, handed: Counter[int]) -> None:
        changed = []
        for tenant, lane in self.lanes.items():
            load = self.loads.get(tenant) or LaneLoad(tenant, ready=False)
            count = handed[tenant]
            occupied = load.running + load.queued + count
            if tenant in self.loads:
                self.memory.paces[tenant].occupied = occupied
            reason, spent = self._reason(lane, load, count), count and lane.rate_limit is not None
            if reason == lane.reason and not spent:
                continue
            after = lane._replace(reason=reason, window=load.queued + count)
            if spent:
                after = after._replace(tokens=tokens(lane, self.now) - count, tokens_at=self.now)
            changed.append(after)
        self._update_lanes(changed)

    def _reason(self, lane: LaneRow, load: LaneLoad, handed: int) -> str:
        if not load.ready:
            return ""
        if lane.max_running is not None and load.running + load.queued + handed >= lane.max_running:
            return QUOTA
        if lane.rate_limit is not None and tokens(lane, self.now) - handed < 1:
            return RATE_LIMIT
        return self.notice

    def _stop_lanes(self, reason: str) -> None:
        wanted = {tenant: reason if tenant in self.ready else "" for tenant in self.lanes}
        self._update_lanes(
            [
                lane._replace(reason=wanted[tenant])
                for tenant, lane in self.lanes.items()
                if lane.reason != wanted[tenant]
            ]
        )

    def _update_lanes(self, lanes: Sequence[LaneRow]) -> None:
        if not lanes:
            return
        values = {
            "pool": self.pool.id,
            "tenants": [lane.tenant_id for lane in lanes],
            "reasons": [lane.reason for lane in lanes],
            "tokens": [lane.tokens for lane in lanes],
            "tokens_at": [lane.tokens_at for lane in lanes],
            "windows": [lane.window for lane in lanes],
        }
        change(self.connection, "write_lanes", values)


def tokens(lane: LaneRow, now: datetime) -> float:
    """What the lane's bucket holds: a second's worth of its rate at most, and never less than one run."""
    assert lane.rate_limit is not None  # noqa: S101 - callers ask for limited lanes only
    burst = max(1.0, lane.rate_limit)
    if lane.tokens is None or lane.tokens_at is None:
        return burst
    return min(burst, lane.tokens + lane.rate_limit * (now - lane.tokens_at).total_seconds())


def queue_name(pool: Pool, lane: LaneRow, dedicated: bool) -> str:
    """Arguments are versioned in the name. A slug has no dot, so a class queue is never a tenant's."""
    own = lane.slug if dedicated else f"class.{lane.tenant_id % CLASS_QUEUES}"
    return f"{settings.QUEUE_PREFIX}.{pool.slug}.{own}.v1"
