"""Read and weigh the queues of a pool: who has ready runs, who occupies slots, and what limits leave."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timezone
from fractions import Fraction
from time import monotonic
from typing import NamedTuple
from uuid import UUID

from django.conf import settings

from jobs.suspensions.rules import SuspensionSet
from runs import transitions
from runs.scheduler.broker.config import queue_version
from runs.scheduler.dispatch import fair_share as shares
from runs.scheduler.dispatch.counts import CountedRow, PoolCounts
from runs.scheduler.dispatch.fair_share import QueueLoad
from runs.scheduler.dispatch.queue_memory import QueueMemories
from runs.scheduler.dispatch.queues import QueueRow, day_of
from runs.scheduler.dispatch.ready_queues import ReadyQueues
from runs.scheduler.dispatch.worker_targets import PoolWorkers
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.trigger.suspensions import read_suspensions
from runs.sql import Connection, change, rows
from scheduler_project.sdk.ids import EPOCH

MAX_IN_A_PASS = 2000
# A run that was queued before `queued_since`, as by a scheduler of an earlier version after a clock was set back, is
# found after this time.
ALL_QUEUED_SECONDS = 60.0


@dataclass(slots=True)
class PoolMemory:
    """What is remembered of a pool from pass to pass; losing it costs a second of ramp-up."""

    queues: QueueMemories = field(default_factory=QueueMemories)
    # Places without a wake-up, because no slot was free: of a tenant's own workers, and of all others together.
    owed: dict[int | None, Fraction] = field(default_factory=dict)
    # What was handed over a moment ago, and when wake-ups were last sent for what nobody claimed; by the same.
    handed: list[tuple[float, Counter[int | None]]] = field(default_factory=list)
    late_at: dict[int | None, float] = field(default_factory=dict)
    counts: PoolCounts = field(default_factory=PoolCounts)
    ready: ReadyQueues = field(default_factory=ReadyQueues)
    # When what is queued was last counted from the beginning.
    all_queued_at: float = -math.inf
    # `queued_since` of the pool: what it is, what it should be, and how many runs were marked since it was written.
    queued_since: datetime = EPOCH
    oldest_queued_at: datetime = EPOCH
    marked: int = 0
    workers: PoolWorkers = field(default_factory=PoolWorkers)
    batch: BatchSize = field(default_factory=lambda: BatchSize("dispatch", MAX_IN_A_PASS))


class DispatchedPool(NamedTuple):
    id: int
    slug: str
    shared: bool
    # As of the last count.
    queues: int
    # How many may come at all: one or more. A queue alone in its pool needs no reserve.
    tenants: int
    exported: Sequence[str]
    broker: str
    broker_queue: str
    # No run that is queued in the pool was queued before this instant.
    queued_since: datetime


@dataclass(eq=False, repr=False)
class PoolLoad:
    """The queues of a pool as one pass finds them."""

    connection: Connection
    pool: DispatchedPool
    now: datetime
    memory: PoolMemory
    notice: str
    # What runs in the pool is counted.
    counting: bool
    suspensions: SuspensionSet = field(init=False)
    # Tenants with ready runs; of those whom a suspension holds as a whole, why.
    ready: set[int] = field(default_factory=set)
    held: dict[int, str] = field(default_factory=dict)
    # As they are stored, and as this pass leaves them.
    stored: dict[int, QueueRow] = field(default_factory=dict)
    queues: dict[int, QueueRow] = field(default_factory=dict)
    # Of queues with ready or queued runs; and the sum of those that only run something.
    loads: dict[int, QueueLoad] = field(default_factory=dict)
    rest: QueueLoad = field(init=False)
    # Running runs by tenant, counted in the table.
    limited_running: dict[int, int] = field(default_factory=dict)
    # Slots by the tenant they are for; None: for everybody. The workers that are for one alone.
    slots: Counter[int | None] = field(default_factory=Counter)
    own_nodes: dict[UUID, int] = field(default_factory=dict)
    # Slots that are taken on them, by tenant.
    own_running: Counter[int] = field(default_factory=Counter)
    # Slots that runs take on workers which are no longer counted: draining ones above all.
    slots_elsewhere: float = 0
    # Of the oldest run that is still queued; the instant of the pass if there is none.
    oldest_queued_at: datetime = field(init=False)

    def __post_init__(self) -> None:
        self.suspensions = read_suspensions(self.connection, self.now)

    @property
    def shared_slots(self) -> float:
        return self.slots[None] + self.slots_elsewhere

    @property
    def midnight(self) -> datetime:
        return datetime.combine(day_of(self.now), time(), timezone.utc)

    def _see_workers(self) -> None:
        """Count the slots of living workers."""
        living = rows(self.connection, "living_workers", {"pool": self.pool.id, "now": self.now})
        nodes = {node for node, _slots, _tenant in living}
        self.memory.workers.see(self.connection, nodes, self.pool.exported)
        for _node, slots, tenant in living:
            self.slots[tenant] += slots
        self.own_nodes = {node: tenant for node, _slots, tenant in living if tenant is not None}

    def _find_queues(self) -> None:
        """Find the queues with ready runs, and those that have runs queued or had some after the last pass."""
        self.ready = self.memory.ready.look(self.connection, self.pool.id)
        queued = self._count()
        # Under a suspension of the whole queue the runs stay, and the queue shows the reason.
        for tenant in self.ready if self.suspensions else ():
            suspension = self.suspensions.holds(tenant, self.pool.id, None, {}, self.now)
            if suspension is not None:
                self.held[tenant] = suspension.stored_reason
        self.ready -= self.held.keys()
        counts = self.memory.counts
        self.own_running = counts.own_running(self.own_nodes)
        self.slots_elsewhere = counts.slots_elsewhere(self.memory.workers.nodes)
        for tenant in self.ready | queued.keys() | counts.queued.keys():
            self.loads[tenant] = self._load(tenant, queued.get(tenant, 0))

    def _count(self) -> dict[int, int]:
        """Count what is queued, and what runs if that is due; return what is queued by tenant."""
        counts, began = self.memory.counts, monotonic()
        since = self.pool.queued_since
        if not 0 <= began - self.memory.all_queued_at < ALL_QUEUED_SECONDS:
            since, self.memory.all_queued_at = EPOCH, began
        values = {"pool": self.pool.id, "count": self.counting, "since": since}
        counted = [CountedRow(*row) for row in rows(self.connection, "occupied", values)]
        oldest = [row.oldest_queued_at for row in counted if row.oldest_queued_at is not None]
        self.oldest_queued_at = min([self.now, *oldest])
        queued = {row.tenant: row.queued for row in counted if row.tenant is not None and row.queued}
        if self.counting:
            counts.count(counted)
            counts.pace.note(self.now.timestamp(), monotonic() - began)
        else:
            counts.note_begun(queued)
        self.memory.queued_since, self.memory.oldest_queued_at = self.pool.queued_since, self.oldest_queued_at
        return queued

    @property
    def earliest_queued_at(self) -> datetime:
        """Return the instant before which no run may be marked as queued: claims would not find it."""
        return max(self.oldest_queued_at, self.pool.queued_since)

    def _load(self, tenant: int, queued: int = 0) -> QueueLoad:
        load = self.memory.counts.load(tenant)
        load.queued, load.ready = queued, tenant in self.ready
        load.own_running = self.own_running[tenant]
        load.has_own_workers = self.slots[tenant] > 0
        return load

    def _read_queues(self) -> None:
        values = {"pool": self.pool.id, "tenants": [*self.loads, *self.held]}
        self.stored = {row[0]: QueueRow(*row) for row in rows(self.connection, "queues", values)}
        self.queues = dict(self.stored)

    def _make_queues(self) -> None:
        """Make the queues of tenants whose first ready run in the pool this is."""
        with_work = sorted(self.ready | self.held.keys())
        missing = [self.queues[tenant] for tenant in with_work if self.queues[tenant].queue_id is None]
        if not missing:
            return
        tenants = [queue.tenant_id for queue in missing]
        broker_queues = [broker_queue_name(self.pool, queue) for queue in missing]
        made = {"pool": self.pool.id, "tenants": tenants, "broker_queues": broker_queues}
        change(self.connection, "make_queues", made)
        self.pool = self.pool._replace(queues=self.pool.queues + len(missing))
        self._read_queues()

    def _uncount_returned(self) -> None:
        """Take runs that came back before they were claimed, as after a pause, out of the day's count."""
        if all(queue.daily_quota is None for queue in self.queues.values()):
            return
        # What became ready since the queues were read may be of another one.
        read = {"pool": self.pool.id, "tenants": list(self.queues)}
        values = {**read, "midnight": self.midnight, "most": MAX_IN_A_PASS}
        for tenant, count in rows(self.connection, "uncount_returned", values):
            self.queues[tenant] = self.queues[tenant].uncount(count, self.now)

    def _count_what_only_own_workers_know(self) -> None:
        """Count queued runs that only the tenant's own workers know.

        It looks at what is queued, which windows bound, and not at all that workers report to know.
        """
        own_targets = self.memory.workers.own_targets
        tenants = [tenant for tenant, load in self.loads.items() if load.queued and tenant in own_targets]
        if tenants:
            values = {"pool": self.pool.id, "tenants": tenants, "since": self.pool.queued_since}
            for tenant, target, count in rows(self.connection, "queued_for_own", values):
                if target in own_targets[tenant]:
                    self.loads[tenant].own_queued += count

    def _count_limited(self) -> None:
        """Count what runs of queues with ready runs and a limit: of these a count from before would not do."""
        limited = [tenant for tenant in self.ready if self.queues[tenant].max_running is not None]
        self.limited_running = dict.fromkeys(limited, 0)
        if limited:
            values = {"pool": self.pool.id, "tenants": limited}
            self.limited_running |= rows(self.connection, "running_of_limited", values)

    def _weigh(self) -> None:
        for tenant, load in self.loads.items():
            load.weight = self.queues[tenant].weight
        self._remember_queues()
        for tenant, load in self.loads.items():
            queue = self.queues[tenant]
            if queue.limited:
                load.most = queue.room(self._occupied(tenant), self.now)
            if looks := self.memory.queues[tenant].own_at_work:
                at_work = [count for _, count in looks]
                load.has_own_workers = True
                load.own_slots = shares.usable_slots(self.slots[tenant], at_work, self.slots[None])
        self.rest = self.memory.counts.rest(self.loads)
        self.rest.own_running = sum(
            slots for tenant, slots in self.own_running.items() if tenant not in self.loads
        )

    def _remember_queues(self) -> None:
        """Put what is remembered into the loads. After a count, note what it saw of all queues."""
        counts, at = self.memory.counts, self.now.timestamp()
        if not self.counting:
            self.memory.queues.recollect(self.loads, at)
            return
        began = monotonic()
        all_loads = self.loads | {
            tenant: self._load(tenant) for tenant in counts.queues.keys() - self.loads.keys()
        }
        self.memory.queues.look(all_loads, at)
        counts.note_freed(all_loads)
        counts.pace.add(monotonic() - began)

    def _occupied(self, tenant: int) -> int:
        """Return what counts for the queue's limit."""
        load = self.loads.get(tenant)
        if load is None:
            return 0
        return self.limited_running[tenant] + load.queued if tenant in self.limited_running else load.runs

    def _recall(self) -> None:
        too_many = shares.to_recall(self.shared_slots, [*self.loads.values(), self.rest])
        recalled = transitions.recall(
            self.connection, self.pool.id, too_many, self.midnight, MAX_IN_A_PASS, self.pool.queued_since
        )
        for tenant, count, of_today, rank in recalled:
            load = self.loads[tenant]
            load.queued -= count
            load.own_queued = min(load.own_queued, load.queued)
            load.ready = tenant not in self.held
            self.memory.queues[tenant].occupied -= count
            self.memory.ready.put_back(tenant, rank)
            queue = self.queues[tenant].refund_tokens(count, self.now)
            if queue.daily_quota is not None:
                queue = queue.uncount(of_today, self.now)
            self.queues[tenant] = queue


def broker_queue_name(pool: DispatchedPool, queue: QueueRow) -> str:
    """Name the broker queue that wakes a tenant's own workers, with the version of its arguments."""
    return f"{settings.QUEUE_PREFIX}.{pool.slug}.{queue.slug}.{queue_version(pool.broker)}"
