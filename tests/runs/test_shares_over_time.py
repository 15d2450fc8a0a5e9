"""Attacks promise 6 over time: slot-seconds of lanes in a pool that dispatch and workers share, simulated.

Workers are as unhelpful as brokers may be: a slot that is free takes from any lane that has something queued, each
as likely as the other. Whatever is fair must come from what is queued.
"""

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

import pytest

from runs.lanes import LaneMemories
from runs.shares import LaneLoad, reserve, share_out

LOOK = 0.05


@dataclass
class SimulatedPool:
    slots: int
    weights: dict[int, int]
    backlog: dict[int, int]
    chance: Random
    # The shortest and the longest run of a tenant, in seconds, or of all.
    lasts: dict[int, tuple[float, float]] = field(default_factory=dict)
    clock: float = 1000.0
    step: float = 0.005
    lanes: LaneMemories = field(default_factory=LaneMemories)
    queued: Counter[int] = field(default_factory=Counter)
    running: Counter[int] = field(default_factory=Counter)
    ends: list[tuple[float, int]] = field(default_factory=list)
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
                loads[tenant] = LaneLoad(tenant, weight, self.running[tenant], self.queued[tenant], ready)
        self.lanes.look(loads, self.clock)
        kept = reserve(self.slots, len(self.weights))
        places = share_out(self.slots, loads.values(), len(self.weights), kept)
        for tenant, count in places.items():
            going = min(count, self.backlog[tenant])
            self.backlog[tenant] -= going
            self.queued[tenant] += going
            self.lanes[tenant].occupied += going

    def _claim(self) -> None:
        lanes = [tenant for tenant, count in self.queued.items() if count]
        while lanes and len(self.ends) < self.slots:
            place = self.chance.randrange(len(lanes))
            tenant = lanes[place]
            self.queued[tenant] -= 1
            if not self.queued[tenant]:
                lanes[place] = lanes[-1]
                lanes.pop()
            self.running[tenant] += 1
            shortest, longest = self.lasts.get(tenant, (0.001, 5.0))
            lasts = shortest * (longest / shortest) ** self.chance.random()
            self._note(tenant, lasts)
            heappush(self.ends, (self.clock + lasts, tenant))

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
            _, tenant = heappop(self.ends)
            self.running[tenant] -= 1


ENDLESS = 10**9


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("slots", [16, 120])
def test_no_lane_with_work_has_less_than_half_its_share(slots: int, seed: int) -> None:
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
