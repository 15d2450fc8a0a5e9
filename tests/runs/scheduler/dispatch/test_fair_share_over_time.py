"""Attacks promise 6 over time: slot-seconds of queues in a pool that dispatch and workers share, simulated.

Workers are as unhelpful as brokers may be: a slot that is free takes from any queue that has something queued, each
as likely as the other. Whatever is fair must come from what is queued.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from random import Random

import pytest

from runs.scheduler.dispatch.fair_share import QueueLoad, reserve, share_out, to_recall
from runs.scheduler.dispatch.load import MAX_IN_A_PASS
from runs.scheduler.dispatch.queue_memory import QueueMemories
from scheduler_project.sdk.execution.batching import BATCH_SECONDS, MAX_BATCH

LOOK = 0.05


@dataclass
class SimulatedPool:
    slots: int
    weights: dict[int, int]
    backlog: dict[int, int]
    chance: Random
    # The shortest and the longest run of a tenant, in seconds, or of all.
    lasts: dict[int, tuple[float, float]] = field(default_factory=dict)
    # Tenants whose runs workers claim together, and what each claim costs its slot.
    short: frozenset[int] = frozenset()
    claim_costs: float = 0.0
    clock: float = 1000.0
    step: float = 0.005
    queues: QueueMemories = field(default_factory=QueueMemories)
    queued: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)
    batched: Counter[int] = field(default_factory=Counter)
    ended: Counter[int] = field(default_factory=Counter)
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    had: Counter[int] = field(default_factory=Counter)
    fair: Counter[int] = field(default_factory=Counter)

    def run(self, seconds: float) -> None:
        end, look_at = self.clock + seconds, self.clock
        while self.clock < end:
            self._end_runs()
            if self.clock >= look_at:
                self._dispatch()
                look_at = self.clock + LOOK
            self._claim()
            self.clock += self.step

    def occupied(self, seconds: float) -> float:
        return sum(self.had.values()) / (seconds * self.slots)

    def worst_share(self) -> float:
        return min(self.had[tenant] / self.fair[tenant] for tenant in self.fair if self.fair[tenant])

    def _dispatch(self) -> None:
        loads = {}
        for tenant, weight in self.weights.items():
            ready = self.backlog[tenant] > 0
            if ready or self.queued[tenant] or self.running[tenant]:
                loads[tenant] = QueueLoad(
                    tenant, weight, self.running[tenant], self.queued[tenant], ready, self.batched[tenant]
                )
        self.queues.look(loads, self.clock)
        for tenant, count in to_recall(self.slots, loads.values()).items():
            self.backlog[tenant] += count
            self.queues[tenant].occupied -= count
            self.queued[tenant] = loads[tenant].queued = self.queued[tenant] - count
            loads[tenant].ready = True
        kept = reserve(self.slots, len(self.weights))
        given = share_out(self.slots, loads.values(), len(self.weights), kept, MAX_IN_A_PASS)
        for tenant, count in given.items():
            going = min(count, self.backlog[tenant])
            self.backlog[tenant] -= going
            self.queued[tenant] += going
            self.queues[tenant].occupied += going

    def _claim(self) -> None:
        queues = [tenant for tenant, count in self.queued.items() if count]
        while queues and len(self.ends) < self.slots:
            place = self.chance.randrange(len(queues))
            tenant = queues[place]
            count = self._claimed_of(tenant)
            self.queued[tenant] -= count
            if not self.queued[tenant]:
                queues[place] = queues[-1]
                queues.pop()
            self.running[tenant] += 1
            done, lasts = self._carried_out(tenant, count)
            self.backlog[tenant] += count - done
            self.batched[tenant] += done - 1
            self._note(tenant, self.claim_costs + lasts)
            heappush(self.ends, (self.clock + self.claim_costs + lasts, tenant, done))

    def _claimed_of(self, tenant: int) -> int:
        if tenant not in self.short:
            return 1
        return min(MAX_BATCH, self.queued[tenant], ceil(2 * self.queued.total() / self.slots))

    def _carried_out(self, tenant: int, count: int) -> tuple[int, float]:
        """So many, in so many seconds. What is behind one that takes long goes back, and they are no longer short."""
        shortest, longest = self.lasts.get(tenant, (0.001, 5.0))
        done, lasts = 0, 0.0
        while done < count and lasts <= BATCH_SECONDS:
            done += 1
            lasts += shortest * (longest / shortest) ** self.chance.random()
        if lasts > BATCH_SECONDS:
            self.short -= {tenant}
        return done, lasts

    def _note(self, tenant: int, seconds: float) -> None:
        """Slot-seconds go to whoever took them; by right they are of all who had work then, by weight."""
        working = [other for other, count in self.backlog.items() if count > 0]
        if tenant not in working:
            return
        self.had[tenant] += seconds  # type: ignore[assignment]
        total = sum(self.weights[other] for other in working)
        for other in working:
            self.fair[other] += seconds * self.weights[other] / total  # type: ignore[assignment]

    def _end_runs(self) -> None:
        while self.ends and self.ends[0][0] <= self.clock:
            _, tenant, count = heappop(self.ends)
            self.running[tenant] -= 1
            self.batched[tenant] -= count - 1
            self.ended[tenant] += count


ENDLESS = 10**9


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slots", [16, 120])
def test_no_queue_with_work_has_less_than_half_its_share(slots: int, seed: int) -> None:
    """Weights 1 to 10, runs of 1 ms to 5 s, and one tenant with as many runs as all others have together."""
    weights = {tenant: 1 + tenant % 10 for tenant in range(40)}
    backlog = dict.fromkeys(weights, ENDLESS) | {0: len(weights) * ENDLESS}
    pool = SimulatedPool(slots, weights, backlog, Random(seed))
    pool.run(60 if slots > 100 else 240)
    assert pool.worst_share() > 0.6


@pytest.mark.parametrize("longest", [0.05, 1.0, 5.0])
def test_one_tenant_alone_uses_all_but_the_reserve(longest: float) -> None:
    weights = {tenant: 1 + tenant % 10 for tenant in range(40)}
    backlog = dict.fromkeys(weights, 0) | {1: ENDLESS}
    pool = SimulatedPool(20, weights, backlog, Random(1), {1: (0.02, longest)})
    pool.run(30)
    assert pool.occupied(30) > 0.8


def test_quick_runs_hold_their_share_beside_slow_ones() -> None:
    weights = {1: 1, 2: 1, 3: 2}
    lasts = {1: (0.001, 0.02), 2: (4.0, 5.0), 3: (0.2, 0.4)}
    pool = SimulatedPool(20, weights, dict.fromkeys(weights, ENDLESS), Random(1), lasts, step=0.001)
    pool.run(60)
    assert pool.worst_share() > 0.5


def pool_of_short_queues(count: int) -> SimulatedPool:
    """Of eight slots; each claim costs a slot 30 ms."""
    weights = dict.fromkeys(range(count), 1)
    backlog, lasts = dict.fromkeys(weights, ENDLESS), dict.fromkeys(weights, (0.001, 0.002))
    return SimulatedPool(8, weights, backlog, Random(1), lasts, frozenset(weights), 0.03)


def test_many_queues_of_short_runs_are_claimed_together() -> None:
    """One by one the claims alone would take the slots, whatever is asked of them: 8 / 0.03 s runs a second."""
    pool = pool_of_short_queues(10)
    pool.run(10)
    assert pool.ended.total() / 10 > 5 * (8 / 0.03)
    assert pool.worst_share() > 0.8


def test_what_is_claimed_together_costs_long_runs_no_share() -> None:
    weights = {1: 1, 2: 1, 3: 2}
    lasts = {1: (0.001, 0.002), 2: (2.0, 5.0), 3: (0.2, 0.4)}
    backlog = dict.fromkeys(weights, ENDLESS)
    pool = SimulatedPool(8, weights, backlog, Random(1), lasts, frozenset({1}), 0.03)
    pool.run(60)
    assert pool.worst_share() > 0.5


def test_runs_that_become_long_are_no_longer_handed_over_together() -> None:
    pool = pool_of_short_queues(4)
    pool.run(5)
    pool.lasts[0] = (3.0, 5.0)
    pool.had.clear()
    pool.fair.clear()
    pool.run(60)
    assert pool.worst_share() > 0.5
