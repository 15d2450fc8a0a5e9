"""Simulate a team's own workers beside the platform's: they claim late and are kept busy all the same.

They take a second or two to claim, as over HTTPS without wake-ups.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from runs.scheduler.dispatch.fair_share import (
    QueueLoad,
    reserve,
    share_out,
    share_out_own,
    to_recall,
    usable_slots,
)
from runs.scheduler.dispatch.load import MAX_IN_A_PASS
from runs.scheduler.dispatch.queue_memory import OWN_SECONDS, QueueMemories

TEAM, OTHER = 1, 2
LOOK, STEP = 0.05, 0.01
# Of a worker without wake-ups: it asks so often, and for what has waited for so long.
ASKS, NAMED_AFTER = 0.8, 1.0


@dataclass
class SimulatedPool:
    """Both queues always have more; runs of the team last `lasts` seconds, those of the other one."""

    lasts: float
    chance: Random
    own_slots: int = 100
    shared_slots: int = 10
    clock: float = 1000.0
    queues: QueueMemories = field(default_factory=QueueMemories)
    # When each was queued; when each ends.
    queued: dict[int, list[float]] = field(default_factory=lambda: {TEAM: [], OTHER: []})
    at_work: list[float] = field(default_factory=list)
    shared: dict[int, list[float]] = field(default_factory=lambda: {TEAM: [], OTHER: []})

    def run(self, seconds: float) -> float:
        """How full its own slots were."""
        asks_at = looks_at = self.clock
        end, had = self.clock + seconds, 0.0
        while self.clock < end:
            self._end_runs()
            self._claim_shared()
            if self.clock >= asks_at:
                self._claim_own()
                asks_at = self.clock + ASKS
            if self.clock >= looks_at:
                self._dispatch()
                looks_at = self.clock + LOOK
            had += STEP * len(self.at_work)
            self.clock += STEP
        return had / (seconds * self.own_slots)

    def _end_runs(self) -> None:
        self.at_work = [end for end in self.at_work if end > self.clock]
        for tenant, ends in self.shared.items():
            self.shared[tenant] = [end for end in ends if end > self.clock]

    def _claim_shared(self) -> None:
        free = self.shared_slots - sum(map(len, self.shared.values()))
        waiting = sorted((at, tenant) for tenant in self.queued for at in self.queued[tenant])
        for at, tenant in waiting[:free]:
            self.queued[tenant].remove(at)
            self.shared[tenant].append(self.clock + (self.lasts if tenant == TEAM else 1.0))

    def _claim_own(self) -> None:
        if not any(self.clock - at >= NAMED_AFTER for at in self.queued[TEAM]):
            return
        for _ in range(min(self.own_slots - len(self.at_work), len(self.queued[TEAM]))):
            self.queued[TEAM].remove(min(self.queued[TEAM]))
            self.at_work.append(self.clock + self.lasts * self.chance.uniform(0.9, 1.1))

    def _dispatch(self) -> None:
        loads = {tenant: self._load(tenant) for tenant in (TEAM, OTHER)}
        loads[TEAM].has_own_workers = True
        self.queues.look(loads, self.clock)
        looks = [count for _, count in self.queues[TEAM].own_at_work]
        loads[TEAM].own_slots = usable_slots(self.own_slots, looks, self.shared_slots)
        for tenant, count in to_recall(self.shared_slots, loads.values()).items():
            self.queued[tenant] = self.queued[tenant][: len(self.queued[tenant]) - count]
            loads[tenant].queued -= count
        own, rest = share_out_own([replace(load) for load in loads.values()], MAX_IN_A_PASS)
        kept = reserve(self.shared_slots, len(loads))
        given = own + Counter(share_out(self.shared_slots, rest, len(loads), kept, MAX_IN_A_PASS))
        for tenant, count in given.items():
            self.queued[tenant] += [self.clock] * count
        for tenant in loads:
            self.queues[tenant].occupied = self._load(tenant).runs

    def _load(self, tenant: int) -> QueueLoad:
        own = len(self.at_work) if tenant == TEAM else 0
        running = len(self.shared[tenant]) + own
        return QueueLoad(tenant, running=running, queued=len(self.queued[tenant]), own_running=own)


@pytest.mark.parametrize("lasts", [10.0, 30.0])
@pytest.mark.parametrize("seed", range(3))
def test_own_workers_that_are_slow_to_claim_are_kept_at_work(seed: int, lasts: float) -> None:
    pool = SimulatedPool(lasts, Random(seed))
    pool.run(3 * lasts)
    assert pool.run(3 * lasts) > 0.85


def test_looks_are_kept_only_of_a_queue_that_has_such_workers_or_had_them_a_moment_ago() -> None:
    queues = QueueMemories()

    def looks(at: float, own_running: int, has_own_workers: bool) -> list[float]:
        load = QueueLoad(
            TEAM, running=1 + own_running, own_running=own_running, has_own_workers=has_own_workers
        )
        queues.look({TEAM: load}, at)
        return [count for _, count in queues[TEAM].own_at_work]

    assert looks(1000.0, 0, False) == []
    assert looks(1000.1, 4, True) == [0, 4], "four began"
    assert looks(1000.2, 0, False) == [0, 4, 0]
    assert looks(1000.2 + OWN_SECONDS, 0, False) == []
