"""Pure: which lane of a pool may hand over how many runs.

Counted in slots, not in starts: what a lane runs and what is queued for it takes a slot each, for as long as it
takes. A lane that frees its slots quickly may have more queued than there are slots, as many as it frees
until the next look, so short runs never wait for the dispatcher and long ones never pile up before the workers.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Below this a slot kept free for others costs more than it is worth.
SMALLEST_POOL_WITH_RESERVE = 4
# So much of the slots is queued beyond the free ones for lanes below their share: the next free slots are theirs.
SLACK = 0.25
LEAST_SLACK = 2


@dataclass(slots=True)
class LaneLoad:
    """A lane with ready runs, or one that occupies slots."""

    tenant_id: int
    weight: int = 1
    running: int = 0
    queued: int = 0
    ready: bool = True
    # What it is expected to free before the next look, to be queued beyond its slots.
    turnover: int = 0
    # Slot-seconds it had by weight, as long as it has had work without a break: who had less goes first.
    served: float = 0.0
    # What its own limits leave: max_running, the rate limit.
    most: int | None = None

    @property
    def taken(self) -> int:
        """Slots it holds: turnover is queued beyond them."""
        return self.running + max(0, self.queued - self.turnover)


def reserve(capacity: int, lanes_of_pool: int) -> int:
    """Slots that only lanes below their share may use; none where there is nobody to keep them for."""
    if lanes_of_pool < 2 or capacity < SMALLEST_POOL_WITH_RESERVE:
        return 0
    return max(1, capacity // 10)


def share_out(
    capacity: int, lanes: Iterable[LaneLoad], lanes_of_pool: int, pool_turnover: int = 0
) -> dict[int, int]:
    """Runs each lane may hand over now, by tenant. Lanes that get none are left out.

    A lane below its weighted share gets a place even if no slot is free, so that the next one is its own; a lane
    above its share gets what is idle beyond the reserve.
    """
    loads = list(lanes)
    slack = max(LEAST_SLACK, int(capacity * SLACK)) + pool_turnover if capacity else 0
    given = _fill_slots(capacity, loads, lanes_of_pool, slack)
    for load in loads:
        if load.ready:
            beyond = max(0, load.turnover - load.queued)
            places = given.get(load.tenant_id, 0) + beyond
            given[load.tenant_id] = places if load.most is None else min(places, load.most)
    return {tenant: places for tenant, places in given.items() if places > 0}


def _fill_slots(capacity: int, loads: list[LaneLoad], lanes_of_pool: int, slack: int) -> dict[int, int]:
    """In the order of hunger, so that a caller who takes only some of it takes the hungriest."""
    free = capacity - sum(load.taken for load in loads)
    if free <= -slack:
        return {}
    kept = reserve(capacity, lanes_of_pool)
    shares = entitlements(capacity, loads, kept if len(loads) < lanes_of_pool else 0)
    given: dict[int, int] = {}
    hungry = [(_hunger(load, 0), load.tenant_id, load) for load in loads if load.ready and load.most != 0]
    heapq.heapify(hungry)
    while hungry and free > -slack:
        _, tenant, load = heapq.heappop(hungry)
        got = given.get(tenant, 0)
        if not _may_take(load, got, shares[tenant], free, kept):
            continue
        given[tenant] = got + 1
        free -= 1
        if load.most is None or got + 1 < load.most:
            heapq.heappush(hungry, (_hunger(load, got + 1), tenant, load))
    return given


def _may_take(load: LaneLoad, got: int, share: float, free: int, kept: int) -> bool:
    held = load.taken + got
    return held == 0 or held + 1 <= share or free > kept


def entitlements(capacity: int, loads: Iterable[LaneLoad], kept: int) -> Mapping[int, float]:
    """Weighted shares of the slots. While other lanes are idle the reserve is kept for them."""
    loads = list(loads)
    weights = sum(load.weight for load in loads) or 1
    return {load.tenant_id: (capacity - kept) * load.weight / weights for load in loads}


def _hunger(load: LaneLoad, got: int) -> float:
    """Lowest first: what it had, and a second of what it holds, by weight."""
    return load.served + (load.taken + got) / load.weight
