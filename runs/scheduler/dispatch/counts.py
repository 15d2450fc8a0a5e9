"""Remember what was counted of a pool until it is counted again. Pure (decision 19).

A count takes time for each running run, so a large pool is not counted in each pass. Between two counts each run that
left its queue is taken for running and none for ended, so nothing is taken for less than it is.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from runs.scheduler.dispatch.fair_share import QueueLoad
from runs.scheduler.scan_pace import QUICK_SECONDS, ScanPace

# A pool with so few running runs is counted in each pass, if a count takes less than QUICK_SECONDS. It takes longer
# beside a transaction that is held open.
COUNTED_EACH_PASS = 1000


class CountedRow(NamedTuple):
    """What a tenant has in the pool, or the slots that are taken on a worker."""

    tenant: int | None
    runs: int
    slots: float
    queued: int
    worker: UUID | None
    weight: int | None
    # Of the oldest run that is still queued.
    oldest_queued_at: datetime | None


@dataclass(slots=True)
class QueueCount:
    """What a queue runs, at most."""

    weight: int
    # At the last count, and the slots that it took.
    runs: int = 0
    slots: float = 0.0
    # So many left the queue since, each to a slot of its own, on a worker that is not known.
    begun: int = 0
    # Places that it is expected to free soon.
    freed: float = 0.0


@dataclass(slots=True)
class PoolCounts:
    """What runs in a pool by its last count, and what can have begun since; without a count, one is due."""

    pace: ScanPace = field(default_factory=ScanPace)
    # Running runs at the last count.
    runs: int = 0
    queues: dict[int, QueueCount] = field(default_factory=dict)
    # Slots that were taken, by worker.
    workers: dict[UUID, float] = field(default_factory=dict)
    # By tenant, how many the last pass left queued, and the queue's weight.
    queued: dict[int, tuple[int, int]] = field(default_factory=dict)
    # The queues of the pool, and the tenants that may have one.
    pool_queues: int = 0
    pool_tenants: int = 0
    # The sum of all queues.
    weight: int = 0
    slots: float = 0.0
    freed: float = 0.0

    def are_due(self, at: float) -> bool:
        """Return whether this pass counts."""
        each_pass = self.runs <= COUNTED_EACH_PASS and self.pace.seconds < QUICK_SECONDS
        return each_pass or self.pace.is_due(at)

    def count(self, rows: Iterable[CountedRow]) -> None:
        self.queues, self.workers = {}, {}
        for row in rows:
            if row.worker is not None:
                self.workers[row.worker] = row.slots
            elif row.tenant is not None and row.runs:
                self.queues[row.tenant] = QueueCount(row.weight or 1, row.runs, row.slots)
        self.runs = sum(count.runs for count in self.queues.values())
        self.weight = sum(count.weight for count in self.queues.values())
        self.slots = sum(count.slots for count in self.queues.values())
        self.freed = 0.0

    def note_begun(self, queued: Mapping[int, int]) -> None:
        """Take what left its queue since the last pass for running: it is not known to have ended or come back."""
        for tenant, (before, weight) in self.queued.items():
            if (left := before - queued.get(tenant, 0)) <= 0:
                continue
            if tenant not in self.queues:
                self.queues[tenant] = QueueCount(weight)
                self.weight += weight
            self.queues[tenant].begun += left
            self.slots += left

    def note_freed(self, loads: Mapping[int, QueueLoad]) -> None:
        """Note what was seen at a count, for the sum of the queues that will have nothing to do."""
        for tenant, count in self.queues.items():
            count.freed = loads[tenant].turnover / loads[tenant].per_place
        self.freed = sum(count.freed for count in self.queues.values())

    def load(self, tenant: int) -> QueueLoad:
        """Return what a queue runs, with nothing queued."""
        count = self.queues.get(tenant) or QueueCount(1)
        load = QueueLoad(tenant, count.weight, running=count.slots + count.begun, ready=False)
        load.batched, load.begun = count.runs - count.slots, count.begun
        return load

    def rest(self, tenants: Iterable[int]) -> QueueLoad:
        """Return the sum of all other queues, which only run something, at the cost of these."""
        counts = [self.queues[tenant] for tenant in tenants if tenant in self.queues]
        rest = QueueLoad(0, weight=0, ready=False, queues=len(self.queues) - len(counts))
        if rest.queues:
            rest.weight = self.weight - sum(count.weight for count in counts)
            rest.running = self.slots - sum(count.slots + count.begun for count in counts)
            rest.turnover = self.freed - sum(count.freed for count in counts)
        return rest

    def own_running(self, own_nodes: Mapping[UUID, int]) -> Counter[int]:
        """Return by tenant the slots that were taken on workers of its own."""
        own: Counter[int] = Counter()
        for node, tenant in own_nodes.items():
            if slots := self.workers.get(node):
                own[tenant] += slots  # type: ignore[assignment]
        return own

    def slots_elsewhere(self, nodes: Collection[UUID]) -> float:
        """Return the slots that were taken on workers other than these."""
        return sum(slots for worker, slots in self.workers.items() if worker not in nodes)
