"""From ready run to permit: which runs of a pool's lanes may be claimed now.

One scheduler decides for all lanes of a pool, so shares and limits have one decider. Runs are marked queued
and that is committed; only then do permits go out, one for each place at the most, and whether they arrive changes
nothing but time.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timezone
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from runs import shares, transitions
from runs.brokers import HIGHEST_PRIORITY, queue_version
from runs.choosing import Candidate, Chosen, Gates, choose
from runs.lanes import NO_LIVE_WORKER, LaneMemories, LaneRow, day_of
from runs.pace import Pace
from runs.permits import Permit
from runs.pool_workers import PoolWorkers
from runs.queries import Connection, change, rows
from runs.shares import LaneLoad
from runs.stops import Stops, read_stops
from scheduler_project.sdk.ids import milliseconds

MOST_IN_A_PASS = 2000
# Runs of a lane that are read beyond those that may go, after a pass that met some that may not.
LEAST_DEPTH = 64
MOST_DEPTH = 1024
# Before every run of a lane.
BEGINNING = (-(2**63), UUID(int=0))
CLASS_QUEUES = 8
PERMITS_PER_SLOT = 2
# So often what is given to lanes that have no runs for it is shared out among the others.
MOST_ROUNDS = 4
NO_TAGS: Mapping[str, str] = {}


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
    workers: PoolWorkers = field(default_factory=PoolWorkers)
    pace: Pace = field(default_factory=lambda: Pace("dispatch", MOST_IN_A_PASS))


def dispatch_pool(
    connection: Connection, pool_id: int, now: datetime, memory: PoolMemory | None = None, notice: str = ""
) -> Dispatched:
    """One pass over a pool, in one transaction; the caller publishes the permits after it.

    1. Find the lanes with ready runs that no stop holds, and make those that are new.
    2. Recall what has become too much, and share the pool's free slots out among them.
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
        # Slots by the tenant they are for; None: for everybody. The nodes that are for one alone.
        self.slots: Counter[int | None] = Counter()
        self.own_nodes: list[UUID] = []
        # Slots that runs take on nodes which are no longer counted: draining ones above all.
        self.slots_elsewhere = 0

    def run(self) -> Dispatched:
        self._see_workers()
        self._find_lanes()
        self._read_lanes()
        self._make_lanes()
        self._uncount_returned()
        handed: Counter[int] = Counter()
        if self.memory.workers.nodes:
            self.done.waiting = bool(self.ready)
            self._count_what_only_own_workers_know()
            self._weigh()
            self._recall()
            handed = self._hand_over_in_rounds()
        self._write_lanes(handed)
        return self.done

    @property
    def shared_slots(self) -> int:
        return self.slots[None] + self.slots_elsewhere

    @property
    def midnight(self) -> datetime:
        return datetime.combine(day_of(self.now), time(), timezone.utc)

    def _see_workers(self) -> None:
        """Slots that living workers have for us."""
        values = {"pool": self.pool.id, "now": self.now}
        living = rows(self.connection, "living_nodes", values)
        nodes = {node for node, _slots, _tenant in living}
        self.memory.workers.see(self.connection, nodes, self.exported)
        for _node, slots, tenant in living:
            self.slots[tenant] += slots
        self.own_nodes = [node for node, _slots, tenant in living if tenant is not None]

    def _find_lanes(self) -> None:
        """Those with ready runs, and those that occupy slots."""
        values = {"pool": self.pool.id, "nodes": list(self.memory.workers.nodes), "own_nodes": self.own_nodes}
        self.ready = {tenant for (tenant,) in rows(self.connection, "lanes_with_ready_runs", values)}
        counted = rows(self.connection, "occupied", values)
        self._hold_lanes()
        self.loads = {
            tenant: LaneLoad(
                tenant,
                running=slots,
                queued=queued,
                ready=tenant in self.ready,
                batched=running - slots,
                own_running=own_running,
            )
            for tenant, running, slots, queued, _elsewhere, own_running in counted
        }
        for tenant in self.ready - self.loads.keys():
            self.loads[tenant] = LaneLoad(tenant)
        self.slots_elsewhere = sum(elsewhere for *_, elsewhere, _own_running in counted)

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

    def _make_lanes(self) -> None:
        """Of tenants whose first ready run in the pool this is."""
        with_work = sorted(self.ready | self.held.keys())
        missing = [self.lanes[tenant] for tenant in with_work if self.lanes[tenant].lane_id is None]
        if not missing:
            return
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

    def _uncount_returned(self) -> None:
        """A run that came back before anybody claimed it, as after a pause, is not counted twice."""
        if all(lane.daily_quota is None for lane in self.lanes.values()):
            return
        # What became ready since the lanes were read may be of another one.
        read = {"pool": self.pool.id, "tenants": list(self.lanes)}
        values = {**read, "midnight": self.midnight, "most": MOST_IN_A_PASS}
        for tenant, count in rows(self.connection, "uncount_returned", values):
            self.lanes[tenant] = self.lanes[tenant].uncount(count, self.now)

    def _count_what_only_own_workers_know(self) -> None:
        """Asked of what is queued, which windows bound, and not of all that workers say they know."""
        tenants = [
            tenant
            for tenant in self.memory.workers.own_targets
            if tenant in self.loads and self.loads[tenant].queued
        ]
        if tenants:
            values = {"pool": self.pool.id, "tenants": tenants}
            for tenant, target, count in rows(self.connection, "queued_for_own", values):
                if target in self.memory.workers.own_targets[tenant]:
                    self.loads[tenant].own_queued += count

    def _weigh(self) -> None:
        for tenant, load in self.loads.items():
            lane = self.lanes[tenant]
            load.weight = lane.weight
            load.has_own_workers = self.slots[tenant] > 0
            if lane.limited:
                load.most = lane.room(load.runs, self.now)
        self.memory.lanes.look(self.loads, self.now.timestamp())
        for tenant, load in self.loads.items():
            if looks := self.memory.lanes[tenant].own_at_work:
                at_work = [count for _, count in looks]
                load.has_own_workers = True
                load.own_slots = shares.believed(self.slots[tenant], at_work, self.slots[None])

    def _recall(self) -> None:
        too_many = shares.to_recall(self.shared_slots, self.loads.values())
        recalled = transitions.recall(self.connection, self.pool.id, too_many, self.midnight, MOST_IN_A_PASS)
        for tenant, count, of_today in recalled:
            load = self.loads[tenant]
            load.queued -= count
            load.own_queued = min(load.own_queued, load.queued)
            load.ready = tenant not in self.held
            self.memory.lanes[tenant].occupied -= count
            lane = self.lanes[tenant].refund_tokens(count, self.now)
            if lane.daily_quota is not None:
                lane = lane.uncount(of_today, self.now)
            self.lanes[tenant] = lane

    def _hand_over_in_rounds(self) -> Counter[int]:
        """Who is hungriest is given room first, but may have no runs for it: then others are given it, so that no lane
        waits for slots that stay idle. Returns how many runs each lane handed over, no more than a pass takes on."""
        handed: Counter[int] = Counter()
        for _ in range(MOST_ROUNDS):
            own, given = self._share_out(handed)
            if not given:
                break
            round_handed = self._hand_over(own, given)
            handed += round_handed
            if all(round_handed[tenant] == count for tenant, count in given.items()):
                break
            for tenant, count in given.items():
                load = self.loads[tenant]
                load.ready = round_handed[tenant] == count
        return handed

    def _share_out(self, handed: Counter[int]) -> tuple[Counter[int], Counter[int]]:
        """How many runs more each lane may hand over to its own workers, and in all."""
        left = self.memory.pace.size - handed.total()
        own, loads = shares.share_out_own(self._loads_after(handed), left)
        tenants = max(self.pool.lanes, self.pool.tenants)
        kept = shares.reserve(self.shared_slots, tenants)
        given = shares.share_out(self.shared_slots, loads, tenants, kept, left - own.total())
        return own, own + Counter(given)

    def _loads_after(self, handed: Counter[int]) -> Iterator[LaneLoad]:
        for tenant, load in self.loads.items():
            count = handed[tenant]
            most = None if load.most is None else load.most - count
            yield replace(load, queued=load.queued + count, most=most) if count else load

    def _hand_over(self, own: Counter[int], given: Counter[int]) -> Counter[int]:
        """Returns how many runs each lane handed over."""
        candidates = self._best(given)
        further, read_to = self._read_on(given)
        known = {run.ctid for run in candidates}
        candidates += [run for run in further if run.ctid not in known]
        reasons = {run.ctid: reason for run in candidates if (reason := self._own_reason(run))}
        limited = {run.limited for run in candidates if run.limited and run.ctid not in reasons}
        gates = Gates(self.connection, limited)
        chosen = choose(candidates, reasons, given, own, self.memory.workers.own_targets, gates)
        self._remember(chosen, given, read_to)
        self._mark(chosen)
        return chosen.handed

    def _remember(self, chosen: Chosen, given: Counter[int], read_to: Mapping[int, tuple[int, UUID]]) -> None:
        for tenant, count in chosen.to_own.items():
            self.loads[tenant].own_queued += count
        for tenant in given:
            lane = self.memory.lanes[tenant]
            if tenant not in chosen.kept_to_own:
                lane.read_to = None
            elif chosen.handed[tenant] < given[tenant]:
                lane.kept_to_own_at = self.now.timestamp()
                lane.read_to = read_to.get(tenant, BEGINNING if lane.depth == MOST_DEPTH else None)
        self._go_deeper(given, chosen.left_behind)

    def _mark(self, chosen: Chosen) -> None:
        transitions.mark_queued(self.connection, [run.ctid for run in chosen.going])
        self.done.blocked += transitions.mark_blocked(self.connection, chosen.blocked)
        self.done.queued += len(chosen.going)
        self.done.permits += self._permits(chosen.going)

    def _best(self, given: Mapping[int, int]) -> list[Candidate]:
        depth = MOST_IN_A_PASS
        wanted = []
        for tenant, count in given.items():
            more = min(depth, self.memory.lanes[tenant].depth)
            depth -= more
            wanted.append(count + more)
        values = {
            "pool": self.pool.id,
            "tenants": list(given),
            "counts": wanted,
            "need_tags": self.stops.need_tags,
        }
        return [Candidate(*row) for row in rows(self.connection, "best_ready", values)]

    def _read_on(self, tenants: Iterable[int]) -> tuple[list[Candidate], dict[int, tuple[int, UUID]]]:
        """Of lanes whose best, as far as they are read, wait for workers of their own: what comes next, pass by pass,
        so that however many these are they hide nothing from the slots of all. With how far it was read."""
        behind = {tenant: at for tenant in tenants if (at := self.memory.lanes[tenant].read_to)}
        if not behind:
            return [], {}
        ranks, ids = zip(*behind.values(), strict=True)
        most = max(LEAST_DEPTH, MOST_DEPTH // len(behind))
        values = {
            "pool": self.pool.id,
            "tenants": list(behind),
            "ranks": list(ranks),
            "ids": list(ids),
            "most": most,
            "need_tags": self.stops.need_tags,
        }
        found = rows(self.connection, "next_ready", values)
        candidates = [Candidate(*row[:-1]) for row in found]
        read = Counter(run.tenant_id for run in candidates)
        last = {run.tenant_id: (run.rank, row[-1]) for run, row in zip(candidates, found, strict=True)}
        # From the end it begins anew: what came meanwhile may be more urgent.
        return candidates, {tenant: last[tenant] if read[tenant] == most else BEGINNING for tenant in behind}

    def _go_deeper(self, given: Mapping[int, int], left_behind: Mapping[int, int]) -> None:
        """What may not go must not hide what may: however many there are of it, they are soon stepped over."""
        for tenant in given:
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
        if not self.lanes[run.tenant_id].allowed:
            return transitions.NOT_ALLOWED
        # Before what is known, which is read of these alone.
        if run.target_key not in self.exported:
            return transitions.NOT_EXPORTED
        if not self.memory.workers.knows(run.tenant_id, run.target_key):
            return transitions.UNKNOWN_TARGET
        return ""

    def _permits(self, going: Sequence[Candidate]) -> Iterator[Permit]:
        """One for each place, of its first run's aged priority; those of a lane that have the same are the same.

        A worker that is let in goes on until the lane is empty, so of very short runs, marked far ahead, the workers
        are not told more often than there are slots to work on them, twice over.
        """
        most, sent = PERMITS_PER_SLOT * self.slots.total(), Counter[int]()
        at, bound = milliseconds(self.now), 1000 * int(settings.STARVATION_BOUND_SECONDS)
        made: defaultdict[int, dict[int, Permit]] = defaultdict(dict)
        for run in going:
            nth, within = divmod(sent[run.tenant_id], self.loads[run.tenant_id].per_place)
            sent[run.tenant_id] += 1
            if within or nth >= most:
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
