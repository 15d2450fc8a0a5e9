"""Pure: which lane of a pool may hand over how many runs.

Counted in slots, not in starts: what a lane runs and what is queued for it takes a slot each, for as long as it
takes. A lane that frees its slots quickly may have more queued than there are slots, as many as it frees
until the next look, so short runs never wait for the dispatcher and long ones never pile up before the workers.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

# In a pool of fewer slots one kept free costs much: there a lane may take it that frees slots so often that the next
# free one is near.
SMALLEST_POOL_WITH_RESERVE = 4
# So much of the slots is queued beyond the free ones for lanes below their share: the next free slots are theirs.
SLACK = 0.25
LEAST_SLACK = 2
MOST_PLACES = 2000


@dataclass(slots=True)
class LaneLoad:
    """A lane with ready runs, or one that occupies slots."""

    tenant_id: int
    weight: int = 1
    # In slots: runs that were claimed together take one, and so many more are `batched` in it.
    running: int = 0
    queued: int = 0
    ready: bool = True
    batched: int = 0
    # What it is expected to free before the next look, to be queued beyond its slots.
    turnover: float = 0.0
    # It frees slots all the time.
    quick: bool = False
    # Slot-seconds it had by weight, as long as it has had work without a break: who had less goes first.
    served: float = 0.0
    # What its own limits leave: max_running, the rate limit.
    most: int | None = None

    @property
    def runs(self) -> int:
        """Handed over and not ended."""
        return self.running + self.batched + self.queued

    @property
    def taken(self) -> float:
        """Slots it holds: turnover is queued beyond them."""
        return self.running + max(0.0, self.queued - self.turnover)

    def to_be_held(self, share: float) -> float:
        """At the next look, if it gets none. Above its share nothing of what it frees is made up for."""
        return self.running + self.queued - (self.turnover if self.running <= share else 0.0)


def reserve(capacity: int, lanes_of_pool: int) -> int:
    """Slots that only lanes below their share may use; none where there is nobody to keep them for."""
    if lanes_of_pool < 2 or capacity < 2:
        return 0
    return max(1, capacity // 10)


def share_out(
    capacity: int,
    lanes: Iterable[LaneLoad],
    lanes_of_pool: int,
    kept: int,
    most: int = MOST_PLACES,
) -> dict[int, int]:
    """Runs each lane may hand over now, by tenant, the hungriest first. Lanes that get none are left out.

    Place by place to the hungriest, who had least by weight, counting a second of what it holds as had. A lane below
    its weighted share gets a place even if no slot is free, so that the next one is its own; a lane above its share
    gets what is idle beyond the reserve that is kept.
    """
    loads = list(lanes)
    weights = sum(load.weight for load in loads) or 1
    # While other lanes are idle the reserve is kept for them.
    share = (capacity - (kept if len(loads) < lanes_of_pool else 0)) / weights
    slack = max(LEAST_SLACK, int(capacity * SLACK)) if capacity else 0
    # What is idle now, and with what is expected to be until the next look.
    idle = capacity - sum(load.taken for load in loads)
    free = capacity - sum(load.running + load.queued - load.turnover for load in loads)
    quick_kept = 0 if capacity < SMALLEST_POOL_WITH_RESERVE else kept
    last = max(-slack, free - most)
    given: dict[int, int] = {}
    hungry = [
        (load.served + held / load.weight, load.tenant_id, held, load)
        for load in loads
        if load.ready and load.most != 0
        for held in [load.to_be_held(share * load.weight)]
    ]
    heapify(hungry)
    while hungry and free > last:
        hunger, tenant, held, load = hungry[0]
        has_some = load.running or load.queued or tenant in given
        if has_some and held + 1 > share * load.weight and idle <= (quick_kept if load.quick else kept):
            heappop(hungry)
            continue
        got = given[tenant] = given.get(tenant, 0) + 1
        free -= 1
        if load.queued + got > load.turnover:
            idle -= 1
        if load.most is None or got < load.most:
            heapreplace(hungry, (hunger + 1 / load.weight, tenant, held + 1, load))
        else:
            heappop(hungry)
    return given
