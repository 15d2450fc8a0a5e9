"""Share the slots of a pool out among its queues: how many runs each may hand over. Pure.

Shares count slots, not starts: each running and each queued run takes one for as long as it takes. Very short runs are
claimed together, also those of several queues, and each takes a part of a slot, or of a place before the slots. A queue
that frees its slots quickly may have more queued than there are slots, as many as it frees until the next pass, so
short runs never wait for the dispatcher and long ones never pile up before the workers.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from math import ceil

# In a pool of fewer slots one kept free costs much: there a queue may take it that frees slots so often that the next
# free one is near.
MIN_SLOTS_WITH_RESERVE = 4
# This part of the slots is queued beyond the free ones for queues below their share: the next free slots are theirs.
SLACK = 0.25
MIN_SLACK = 2
# So many slots of a tenant's own workers are filled at once, beside the platform's, or twice as many as began recently.
MIN_OWN_SLOTS = 4


@dataclass(slots=True)
class QueueLoad:
    """A queue with ready runs, or one that occupies slots."""

    tenant_id: int
    weight: int = 1
    # In slots: runs that were claimed together share one, so there are so many more runs, `batched`, than slots.
    running: float = 0
    queued: int = 0
    ready: bool = True
    batched: float = 0
    # Of the running ones, those that began since the last count: which workers have them is not known.
    begun: int = 0
    # Occupied slots of workers that are its tenant's alone: no other queue could have them.
    own_running: float = 0
    # It has such workers, or had them a moment ago.
    has_own_workers: bool = False
    # So many of their slots are counted on.
    own_slots: int = 0
    # Queued runs that only those workers know.
    own_queued: int = 0
    # When it was last given room in the shared slots, it had runs for its own workers alone.
    keeps_to_own: bool = False
    # Runs it is expected to free before the next look, to be queued beyond its slots.
    turnover: float = 0.0
    # Runs that together take a slot for 100 ms, and so one place: not more of them than ended lately.
    per_place: int = 1
    # So many would by their length, or by the pool's average: counted on if no more are queued than ended lately.
    fitting: int = 1
    ended_lately: float = 0
    # It frees slots all the time.
    quick: bool = False
    # Its runs that ended in the last second.
    ended_recently: int = 0
    # Slot-seconds it had by weight, as long as it has had work without a break: who had less goes first.
    served: float = 0.0
    # What its own limits leave: max_running, the rate limit.
    most: int | None = None
    # How many queues it is the sum of.
    queues: int = 1

    @property
    def runs(self) -> int:
        """Return the runs that are queued or running."""
        return round(self.running + self.batched) + self.queued

    @property
    def waiting(self) -> float:
        """Return the places that queued runs take; negative if fewer are queued than it frees until the next pass."""
        return (self.queued - self.turnover) / self.per_place_among(self.queued)

    def per_place_among(self, queued: int) -> int:
        """Return how many runs fill a place if so many are queued: as many as fit, if no more than ended lately."""
        return self.fitting if 0 < queued <= self.ended_lately else self.per_place

    @property
    def taken(self) -> float:
        """Return the slots it holds; its turnover is queued beyond them."""
        return self.running + max(0.0, self.waiting)

    def to_be_held(self, share: float) -> float:
        """Return what it holds at the next pass if it gets nothing; above its share nothing it frees is replaced."""
        if self.running <= share:
            return self.running + self.waiting
        return self.running + self.queued / self.per_place_among(self.queued)


def reserve(capacity: float, queues_of_pool: int) -> int:
    """Return how many slots only queues below their share may use; none where there is nobody to keep them for."""
    if queues_of_pool < 2 or capacity < 2:
        return 0
    return max(1, int(capacity / 10))


def to_recall(capacity: float, queues: Iterable[QueueLoad]) -> dict[int, int]:
    """Return how many queued runs are too many, by tenant.

    These are runs of a queue above its share that have become longer than they were when they were queued, and runs
    of a queue whose own workers take less than was expected. Workers take what is queued as slots become free: what
    is queued so far ahead must not go first while a queue below its share has runs to start. What is queued for its
    own workers stays.
    """
    loads = [split(load)[1] for load in queues]
    each = capacity / (sum(load.weight for load in loads) or 1)
    may_go = [load for load in loads if load.ready and load.most != 0 and not load.keeps_to_own]
    if not any(load.running < each * load.weight for load in may_go):
        return {}
    return {load.tenant_id: count for load in loads if (count := _too_many(load, each * load.weight))}


def _too_many(load: QueueLoad, share: float) -> int:
    if load.waiting <= 0 or load.queued <= load.ended_recently:
        return 0
    if load.running > share:
        return load.queued
    if not load.has_own_workers:
        # It was queued by its share.
        return 0
    return max(0, load.queued - int((share + MIN_SLACK - load.running) * load.per_place + load.turnover))


def usable_slots(slots: int, at_work: Sequence[float], shared_slots: float) -> int:
    """Return how many of the slots that a tenant's own workers report are filled, by how many were busy recently.

    Beside slots for all tenants only as many count as those workers will soon show at work: workers of the whole pool
    take what is queued for slots that are not there, or that start nothing.
    """
    if not shared_slots:
        return slots
    begun = at_work[-1] - min(at_work)
    return min(slots, ceil(max(*at_work, at_work[-1] + max(MIN_OWN_SLOTS, 2 * begun))))


def split(load: QueueLoad) -> tuple[QueueLoad, QueueLoad]:
    """Split a queue's load into the part on its own workers' slots, which are filled first, and the shared part.

    What began since the last count may be on either, so it is in both.
    """
    own_running = load.own_running + load.begun
    own_turnover = load.turnover * (load.own_running / load.running if load.running else load.own_slots > 0)
    room = max(0, int((load.own_slots - own_running) * load.per_place) + int(own_turnover))
    queued = max(load.own_queued, min(load.queued, room))
    own = replace(load, running=own_running, queued=queued, turnover=own_turnover)
    shared = replace(
        load,
        running=load.running - load.own_running,
        queued=load.queued - own.queued,
        turnover=load.turnover - own_turnover,
    )
    return own, shared


def share_out_own(queues: Iterable[QueueLoad], most: int) -> tuple[Counter[int], list[QueueLoad]]:
    """Give the slots of workers that came with a tenant's key to that tenant's queue; they run nothing else.

    The slots for all tenants are then shared out as if there were no others. Returns the runs for the own workers,
    and the loads that remain for the others.
    """
    given, rest = Counter[int](), []
    for load in queues:
        if load.own_slots or load.own_running:
            own, load = split(load)
            given += Counter(share_out(own.own_slots, [own], 1, 0, most - given.total()))
            load.most = None if load.most is None else load.most - given[load.tenant_id]
        rest.append(load)
    return given, rest


def share_out(
    capacity: float, queues: Iterable[QueueLoad], queues_of_pool: int, kept: int, most: int
) -> dict[int, int]:
    """Return how many runs each queue may hand over now, by tenant, the least served first; others are left out.

    Each run goes to the queue that had least by weight, counting a second of what it holds as had. A queue below its
    weighted share gets one even if no slot is free, so that the next one is its own; a queue above its share gets what
    is idle beyond the reserve.
    """
    loads = list(queues)
    weights = sum(load.weight for load in loads) or 1
    # While other queues are idle the reserve is kept for them.
    share = (capacity - (kept if sum(load.queues for load in loads) < queues_of_pool else 0)) / weights
    slack = max(MIN_SLACK, int(capacity * SLACK)) if capacity else 0
    # What is idle now, and with what is expected to be until the next look.
    idle = capacity - sum(load.taken for load in loads)
    free = capacity - sum(load.running + load.waiting for load in loads)
    quick_kept = 0 if capacity < MIN_SLOTS_WITH_RESERVE else kept
    given: dict[int, int] = {}
    contenders = [
        (load.served + held / load.weight, load.tenant_id, held, load)
        for load in loads
        if load.ready and load.most != 0
        for held in [load.to_be_held(share * load.weight)]
    ]
    heapify(contenders)
    while contenders and free > -slack and most > 0:
        virtual_time, tenant, held, load = contenders[0]
        part = 1 / load.per_place_among(load.queued + given.get(tenant, 0) + 1)
        has_some = load.running or load.queued or tenant in given
        if has_some and held + part > share * load.weight and idle <= (quick_kept if load.quick else kept):
            heappop(contenders)
            continue
        given[tenant] = given.get(tenant, 0) + 1
        most -= 1
        free -= part
        if load.queued + given[tenant] > load.turnover:
            idle -= part
        if load.most is None or given[tenant] < load.most:
            heapreplace(contenders, (virtual_time + part / load.weight, tenant, held + part, load))
        else:
            heappop(contenders)
    return given
