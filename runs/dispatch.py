"""From ready run to permit: which runs of a pool's lanes may be claimed now.

One scheduler decides for all lanes of a pool, so shares and limits have one decider. Runs are marked queued
and that is committed; only then does a permit go out for each, and whether it arrives changes nothing but time.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time
from math import ceil
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from runs import shares, transitions
from runs.brokers import HIGHEST_PRIORITY, queue_version
from runs.lanes import NO_LIVE_WORKER, LaneMemories, LaneRow, day_of
from runs.pace import Pace
from runs.permits import Permit
from runs.queries import Connection, change, rows
from runs.shares import LaneLoad
from runs.stops import Stops, read_stops
from scheduler_project.sdk.ids import milliseconds

MOST_IN_A_PASS = 2000
# Runs of a lane that are read beyond those that may go, after a pass that met some that may not.
LEAST_DEPTH = 64
MOST_DEPTH = 1024
CLASS_QUEUES = 8
PERMITS_PER_SLOT = 2
# So often the places that lanes have no runs for are shared out among the others.
MOST_ROUNDS = 4
NO_TAGS: Mapping[str, str] = {}


class Candidate(NamedTuple):
    """A ready run among the best of its lane, locked: where its row lies is where it will lie when it is marked."""

    place: str
    tenant_id: int
    rank: int
    target_key: str
    # Its job, if that has a limit.
    limited: UUID | None
    paused: bool
    # Its job's breaker is not closed, and it is not the probe.
    broken: bool
    # Read only while a stop names a tag.
    tags: str | None


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
class PoolMemory:
    """Of one pool, kept from pass to pass by whoever dispatches it; losing it costs a second of ramp-up."""

    lanes: LaneMemories = field(default_factory=LaneMemories)
    nodes: frozenset[UUID] = frozenset()
    # With the tenant whose runs alone they are known for; None: for everybody's.
    targets: frozenset[tuple[str, int | None]] = frozenset()
    pace: Pace = field(default_factory=lambda: Pace("dispatch", MOST_IN_A_PASS))


class Gates:
    """The gates of the jobs in question, locked, and what is occupied behind them."""

    def __init__(self, connection: Connection, jobs: Collection[UUID]) -> None:
        wanted = {"jobs": sorted(jobs)}
        self.limits: dict[UUID, int] = dict(rows(connection, "lock_gates", wanted)) if jobs else {}
        # A gate that was not locked is in somebody's hands: its runs wait for the next pass.
        self.busy = set(jobs) - set(self.limits)
        held = {"jobs": list(self.limits)}
        self.occupied: dict[UUID, int] = dict(rows(connection, "occupied_gates", held)) if self.limits else {}

    def enter(self, job: UUID) -> bool:
        """Whether there was room for one more."""
        occupied = self.occupied.get(job, 0)
        if occupied >= self.limits[job]:
            return False
        self.occupied[job] = occupied + 1
        return True


def dispatch_pool(
    connection: Connection, pool_id: int, now: datetime, memory: PoolMemory | None = None, notice: str = ""
) -> Dispatched:
    """One pass over a pool, in one transaction; the caller publishes the permits after it.

    1. Find the lanes with ready runs that no stop holds, and make those that are new.
    2. Share the pool's free slots out among them.
    3. Lock the best of each lane in rank order; block what may not go for a reason of its own.
    4. Mark the rest queued, and write what this took of each lane's limits.
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
    lanes: int
    # How many may come at all: one or more. Whoever is alone has nobody to keep a slot for.
    tenants: int
    exported: Sequence[str]
    broker: str


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
        self.stops: Stops = read_stops(connection, now)
        self.done = Dispatched()
        # Tenants with ready runs; of those whom a stop holds as a whole, why.
        self.ready: set[int] = set()
        self.held: dict[int, str] = {}
        # As they are stored, and as this pass leaves them.
        self.stored: dict[int, LaneRow] = {}
        self.lanes: dict[int, LaneRow] = {}
        self.loads: dict[int, LaneLoad] = {}
        # Slots by the tenant they are for; None: for everybody.
        self.slots: Counter[int | None] = Counter()
        # Slots of living workers, all together.
        self.capacity = 0

    def run(self) -> Dispatched:
        capacity = self.capacity = self._capacity()
        capacity += self._find_lanes()
        self._take_back()
        handed: Counter[int] = Counter()
        if self.memory.nodes:
            self.done.waiting = bool(self.ready)
            self._weigh()
            handed = self._hand_over_in_rounds(capacity)
        self._write_lanes(handed)
        return self.done

    def _capacity(self) -> int:
        """Slots that living workers have for us. What a worker knows never changes, so it is read once."""
        values = {"pool": self.pool.id, "now": self.now}
        living = rows(self.connection, "living_nodes", values)
        nodes = {node for node, _slots, _tenant in living}
        if nodes != self.memory.nodes:
            self.memory.nodes = frozenset(nodes)
            known = rows(self.connection, "targets_of_nodes", {"nodes": list(nodes)})
            self.memory.targets = frozenset((target, tenant) for target, tenant in known)
        for _node, slots, tenant in living:
            self.slots[tenant] += slots
        return self.slots.total()

    def _find_lanes(self) -> int:
        """Returns how many slots are taken on nodes that are no longer counted: draining ones above all."""
        values = {"pool": self.pool.id, "nodes": list(self.memory.nodes)}
        self.ready = {tenant for (tenant,) in rows(self.connection, "lanes_with_ready_runs", values)}
        counted = rows(self.connection, "occupied", values)
        self._hold_lanes()
        self.loads = {
            tenant: LaneLoad(
                tenant, running=slots, queued=queued, ready=tenant in self.ready, batched=running - slots
            )
            for tenant, running, slots, queued, _ in counted
        }
        for tenant in self.ready - self.loads.keys():
            self.loads[tenant] = LaneLoad(tenant)
        self._read_lanes()
        with_work = sorted(self.ready | self.held.keys())
        missing = [self.lanes[tenant] for tenant in with_work if self.lanes[tenant].lane_id is None]
        if missing:
            self._make_lanes(missing)
        return sum(elsewhere for *_, elsewhere in counted)

    def _hold_lanes(self) -> None:
        """A stop that names no tag holds whole lanes: their runs are left alone, and the lane tells the reason."""
        for tenant in self.ready if self.stops else ():
            stop = self.stops.holds(tenant, self.pool.id, NO_TAGS, self.now)
            if stop is not None:
                self.held[tenant] = stop.reason
        self.ready -= self.held.keys()

    def _read_lanes(self) -> None:
        tenants = [*self.loads, *self.held]
        values = {"pool": self.pool.id, "shared": self.pool.shared, "tenants": tenants}
        self.stored = {row[0]: LaneRow(*row) for row in rows(self.connection, "lanes", values)}
        self.lanes = dict(self.stored)

    def _make_lanes(self, missing: Sequence[LaneRow]) -> None:
        room = settings.DEDICATED_QUEUES - self.pool.lanes
        queues = [
            queue_name(self.pool, lane, dedicated=number < room or not self.pool.shared)
            for number, lane in enumerate(missing)
        ]
        tenants = [lane.tenant_id for lane in missing]
        change(self.connection, "make_lanes", {"pool": self.pool.id, "tenants": tenants, "queues": queues})
        self.pool = self.pool._replace(lanes=self.pool.lanes + len(missing))
        self._read_lanes()
        self.done.queues = [self.lanes[tenant].queue for tenant in tenants]

    def _take_back(self) -> None:
        """A run that came back before anybody claimed it, as after a pause, is not counted twice."""
        if all(lane.daily_quota is None for lane in self.lanes.values()):
            return
        midnight = datetime.combine(day_of(self.now), time(), self.now.tzinfo)
        values = {"pool": self.pool.id, "midnight": midnight, "most": MOST_IN_A_PASS}
        for tenant, count in rows(self.connection, "take_back", values):
            self.lanes[tenant] = self.lanes[tenant].take_back(count, self.now)

    def _weigh(self) -> None:
        for tenant, load in self.loads.items():
            lane = self.lanes[tenant]
            load.weight = lane.weight
            if lane.limited:
                load.most = lane.room(load.runs, self.now)
        self.memory.lanes.look(self.loads, self.now.timestamp())
        self._keep_to_reach()

    def _keep_to_reach(self) -> None:
        """Workers that came with a tenant's key take nobody else's runs: no lane has more queued than can be taken."""
        for tenant, load in self.loads.items():
            reach = self.slots[None] + self.slots[tenant]
            if reach < self.slots.total():
                room = max(0, reach + ceil(load.turnover) - load.running - load.queued) if reach else 0
                load.most = room if load.most is None else min(load.most, room)

    def _hand_over_in_rounds(self, capacity: int) -> Counter[int]:
        """Who is hungriest gets places first, but may have no runs for them: those go to the others, so that no lane
        waits for slots that stay idle. Returns how many runs each lane handed over, no more than a pass takes on."""
        tenants = max(self.pool.lanes, self.pool.tenants)
        kept = shares.reserve(capacity, tenants)
        handed: Counter[int] = Counter()
        for _ in range(MOST_ROUNDS):
            left = self.memory.pace.size - handed.total()
            places = shares.share_out(capacity, self._loads_after(handed), tenants, kept, left)
            if not places:
                break
            round_handed = self._hand_over(places)
            handed += round_handed
            if all(round_handed[tenant] == count for tenant, count in places.items()):
                break
            for tenant, count in places.items():
                load = self.loads[tenant]
                load.ready = round_handed[tenant] == count
        return handed

    def _loads_after(self, handed: Counter[int]) -> Iterator[LaneLoad]:
        for tenant, load in self.loads.items():
            count = handed[tenant]
            most = None if load.most is None else load.most - count
            yield replace(load, queued=load.queued + count, most=most) if count else load

    def _hand_over(self, places: Mapping[int, int]) -> Counter[int]:
        """Returns how many runs each lane handed over."""
        candidates = self._best(places)
        blocked = {run.place: reason for run in candidates if (reason := self._own_reason(run))}
        limited = {run.limited for run in candidates if run.limited and run.place not in blocked}
        gates = Gates(self.connection, limited)
        going, handed, left_behind = [], Counter[int](), Counter[int]()
        for run in candidates:
            if run.place in blocked or run.limited in gates.busy:
                left_behind[run.tenant_id] += 1
            elif handed[run.tenant_id] < places[run.tenant_id]:
                if run.limited is None or gates.enter(run.limited):
                    handed[run.tenant_id] += 1
                    going.append(run)
                else:
                    blocked[run.place] = transitions.CONCURRENCY
                    left_behind[run.tenant_id] += 1
        self._go_deeper(places, left_behind)
        transitions.mark_queued(self.connection, [run.place for run in going])
        self.done.blocked += transitions.mark_blocked(self.connection, blocked)
        self.done.queued += len(going)
        self.done.permits += self._permits(going)
        return handed

    def _best(self, places: Mapping[int, int]) -> list[Candidate]:
        depth = MOST_IN_A_PASS
        wanted = []
        for tenant, count in places.items():
            more = min(depth, self.memory.lanes[tenant].depth)
            depth -= more
            wanted.append(count + more)
        values = {
            "pool": self.pool.id,
            "tenants": list(places),
            "places": wanted,
            "need_tags": self.stops.need_tags,
        }
        return [Candidate(*row) for row in rows(self.connection, "best_ready", values)]

    def _go_deeper(self, places: Mapping[int, int], left_behind: Mapping[int, int]) -> None:
        """What may not go must not hide what may: however many there are of it, they are soon stepped over."""
        for tenant in places:
            lane = self.memory.lanes[tenant]
            lane.depth = min(MOST_DEPTH, max(LEAST_DEPTH, 2 * lane.depth)) if left_behind[tenant] else 0

    def _own_reason(self, run: Candidate) -> str:
        if run.paused:
            return transitions.PAUSED
        if run.broken:
            return transitions.BREAKER
        if run.tags is not None:
            stop = self.stops.holds(run.tenant_id, self.pool.id, json.loads(run.tags), self.now)
            if stop is not None:
                return stop.word
        if not self.memory.targets & {(run.target_key, None), (run.target_key, run.tenant_id)}:
            return transitions.UNKNOWN_TARGET
        if not self.lanes[run.tenant_id].allowed:
            return transitions.NOT_ALLOWED
        if run.target_key not in self.exported:
            return transitions.NOT_EXPORTED
        return ""

    def _permits(self, going: Sequence[Candidate]) -> Iterator[Permit]:
        """One for each run, of the aged priority; those of a lane that have the same are the same.

        A worker that is let in goes on until the lane is empty, so of very short runs, marked far ahead, the workers
        are not told more often than there are slots to work on them, twice over.
        """
        most, sent = PERMITS_PER_SLOT * self.capacity, Counter[int]()
        at, bound = milliseconds(self.now), 1000 * int(settings.STARVATION_BOUND_SECONDS)
        made: defaultdict[int, dict[int, Permit]] = defaultdict(dict)
        for run in going:
            sent[run.tenant_id] += 1
            if sent[run.tenant_id] > most:
                continue
            level = max(0, min(HIGHEST_PRIORITY, (at - run.rank) * HIGHEST_PRIORITY // bound))
            permit = made[run.tenant_id].get(level)
            if permit is None:
                lane = f"{self.pool.id}:{run.tenant_id}"
                permit = Permit(self.lanes[run.tenant_id].queue, lane, level)
                made[run.tenant_id][level] = permit
            yield permit

    def _write_lanes(self, handed: Counter[int]) -> None:
        changed = []
        for tenant, lane in self.lanes.items():
            load = self.loads.get(tenant)
            queued = load.queued + handed[tenant] if load else 0
            occupied = load.runs + handed[tenant] if load else 0
            if tenant in handed:
                lane = lane.spend(handed[tenant], self.now)
                self.memory.lanes[tenant].occupied = occupied
            reason = self._reason(lane, occupied)
            if reason != lane.reason or lane is not self.stored[tenant]:
                changed.append(lane._replace(reason=reason, window=queued))
        self._update_lanes(changed)

    def _reason(self, lane: LaneRow, occupied: int) -> str:
        if lane.tenant_id in self.held:
            return self.held[lane.tenant_id]
        if lane.tenant_id not in self.ready:
            return ""
        if None not in self.slots and lane.tenant_id not in self.slots:
            return NO_LIVE_WORKER
        return (lane.limit_reached(occupied, self.now) if lane.limited else "") or self.notice

    def _update_lanes(self, lanes: Sequence[LaneRow]) -> None:
        if not lanes:
            return
        values = {
            "pool": self.pool.id,
            "tenants": [lane.tenant_id for lane in lanes],
            "reasons": [lane.reason for lane in lanes],
            "tokens": [lane.tokens for lane in lanes],
            "tokens_at": [lane.tokens_at for lane in lanes],
            "days": [lane.day for lane in lanes],
            "day_counts": [lane.day_count for lane in lanes],
            "windows": [lane.window for lane in lanes],
        }
        change(self.connection, "write_lanes", values)


def queue_name(pool: Pool, lane: LaneRow, dedicated: bool) -> str:
    """Arguments are versioned in the name. A slug has no dot, so a class queue is never a tenant's."""
    own = lane.slug if dedicated else f"class.{lane.tenant_id % CLASS_QUEUES}"
    return f"{settings.QUEUE_PREFIX}.{pool.slug}.{own}.{queue_version(pool.broker)}"
