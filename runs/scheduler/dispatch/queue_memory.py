"""Remember from pass to pass how fast each queue of a pool frees its slots, and what it had of them. Pure."""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from runs.scheduler.dispatch.fair_share import QueueLoad
from runs.scheduler.dispatch.ready_queues import Place
from scheduler_project.sdk.execution.batching import BATCH_SECONDS, MAX_BATCH

# The rate at which a queue frees slots is measured over these: what it frees soon, and whether it does so steadily.
TURNOVER_SECONDS = 0.3
QUICK_SECONDS = 1.0
QUICK_PER_SECOND = 2.0
# The starts of a team's own workers are remembered for this long: without wake-ups they take a second or two to claim.
OWN_SECONDS = 5.0
# A queue that was given room in the shared slots and had runs for its own workers alone would not take room that others
# gave back: for this long nothing is recalled on its behalf.
KEEPS_TO_OWN_SECONDS = 5.0
# How far ahead a queue's turnover is queued, also in a pool so large that each pass is slow. What is queued is claimed
# as soon as any slot is free, whosever share that is: the further ahead, the less the shares hold.
LOOK_AHEAD_SECONDS = 0.1
LOOKS_AHEAD = 2.0
MAX_LOOK_AHEAD_SECONDS = 2.0


# The length of a queue's runs is remembered while it is idle too: most queues start a run now and then.
LENGTH_SECONDS = 10.0
MAX_LENGTHS = 10_000


@dataclass(slots=True)
class RunLength:
    """How many runs of a queue ended, and the time of slots they took: what was long ago counts less and less."""

    at: float = 0.0
    ended: float = 0.0
    slot_seconds: float = 0.0

    def note(self, at: float, ended: int, slot_seconds: float) -> None:
        # After a clock that was set back nothing is forgotten.
        remembered = math.exp(-max(0.0, at - self.at) / LENGTH_SECONDS)
        self.ended = self.ended * remembered + ended
        self.slot_seconds = self.slot_seconds * remembered + slot_seconds
        self.at = at


class Seen(NamedTuple):
    """What one count saw since the one before."""

    at: float
    ended: int
    # As many of these as ended in the last TURNOVER_SECONDS, if they ended evenly.
    freed: int
    slot_seconds: float


@dataclass(slots=True)
class QueueMemory:
    """How fast a queue frees its slots, and what it had of them by weight."""

    served: float
    length: RunLength = field(default_factory=RunLength)
    occupied: int = 0
    # The counts of the last second.
    seen: deque[Seen] = field(default_factory=deque)
    # Slots of its own workers at work: at the counts of the last seconds, and at one before these. Empty for a queue
    # without such workers: most have none, and every pass goes over all queues.
    own_at_work: deque[tuple[float, float]] = field(default_factory=deque)
    # Twice what it ended, if nothing was left in its queue while more was ready: so much might not be too much.
    ran_dry: int = 0
    # How many runs that may not go lay before those that may: so far is read beyond what goes.
    depth: int = 0
    # When it was given room before the slots of all, and had no runs but for its own workers.
    kept_to_own_at: float = -math.inf
    # Rank and id up to which its best were read, when none that was read has work for the slots of all.
    read_to: Place | None = None

    def look(self, at: float, since: float, load: QueueLoad) -> None:
        if load.has_own_workers or load.own_running or self.own_at_work:
            self._look_at_own(at, since, load)
        held = load.runs
        ended, slot_seconds = max(0, self.occupied - held), load.running * (at - since)
        freed = int(ended * TURNOVER_SECONDS / max(TURNOVER_SECONDS, at - since))
        self.seen.append(Seen(at, ended, freed, slot_seconds))
        self.length.note(at, ended, slot_seconds)
        # What is from the future was seen before the clock was set back.
        while not at - QUICK_SECONDS <= self.seen[0].at <= at:
            self.seen.popleft()
        # What it had of its own workers is nobody else's.
        self.served += (load.running - load.own_running) * (at - since) / load.weight
        self.occupied = held
        self.ran_dry = 2 * ended if load.ready and not load.queued else 0

    def _look_at_own(self, at: float, since: float, load: QueueLoad) -> None:
        looks = self.own_at_work
        if self.seen and not looks:
            # At the look before none was at work.
            looks.append((since, 0))
        looks.append((at, load.own_running))
        while len(looks) > 2 and not at - OWN_SECONDS <= looks[0][0] <= at:
            looks.popleft()
        if not load.has_own_workers and not any(count for _, count in looks):
            looks.clear()

    def ended_recently(self) -> int:
        return sum(seen.ended for seen in self.seen)

    def per_place(self) -> int:
        """Return how many runs a worker is expected to claim at once, at most as many as ended lately.

        A run that was in no pass at all may have been short by chance.
        """
        return max(1, int(min(MAX_BATCH, self.length.ended, *self._short_enough())))

    def fitting(self, of_pool: RunLength) -> int:
        """Return how many runs fit into the time of a batch: of a queue that no pass saw at work by the pool's average.

        Most queues start a short run now and then.
        """
        short_enough = self._short_enough()
        if not short_enough and of_pool.slot_seconds:
            short_enough = [BATCH_SECONDS * of_pool.ended / of_pool.slot_seconds]
        return max(self.per_place(), int(min(MAX_BATCH, *short_enough)) if short_enough else 1)

    def _short_enough(self) -> list[float]:
        ended, slot_seconds = self.ended_recently(), sum(seen.slot_seconds for seen in self.seen)
        per_slot = [(self.length.ended, self.length.slot_seconds)]
        # A long run counts at once.
        if slot_seconds > BATCH_SECONDS:
            per_slot.append((ended, slot_seconds))
        return [BATCH_SECONDS * ended / seconds for ended, seconds in per_slot if seconds]

    def freed_per_second(self, at: float, seconds: float) -> float:
        return sum(seen.freed for seen in self.seen if seen.at >= at - seconds) / seconds


class QueueMemories(dict[int, QueueMemory]):
    """The memories of a pool's queues, by tenant, as of the last count; of idle queues the length of their runs."""

    def __init__(self, memories: Mapping[int, QueueMemory] | None = None) -> None:
        super().__init__(memories or {})
        self._lengths: dict[int, RunLength] = {}
        # Of the runs of all queues.
        self._of_pool = RunLength()
        self._looked_at = 0.0
        # What the least served queue had at the last look, and how far ahead of it turnover is queued.
        self._floor, self._ahead = 0.0, LOOK_AHEAD_SECONDS

    def look(self, loads: Mapping[int, QueueLoad], at: float) -> None:
        """Note what was counted of all queues, and put into each load what is remembered of it."""
        # After a clock that was set back nobody has had less than nothing.
        since, self._looked_at = min(self._looked_at or at, at), at
        # A queue that comes back starts where the least served one is: nobody saves up shares while idle, and
        # slots that were idle otherwise count against nobody.
        self._floor = min((self[tenant].served for tenant in loads if tenant in self), default=0.0)
        ended, slot_seconds = 0, 0.0
        for tenant in self.keys() - loads.keys():
            idle = self.pop(tenant)
            idle.length.note(at, idle.occupied, 0.0)
            ended += idle.occupied
            self._lengths[tenant] = idle.length
        while len(self._lengths) > MAX_LENGTHS:
            del self._lengths[next(iter(self._lengths))]
        self._ahead = min(MAX_LOOK_AHEAD_SECONDS, max(LOOK_AHEAD_SECONDS, LOOKS_AHEAD * (at - since)))
        for tenant, load in loads.items():
            memory = self._of(tenant)
            memory.look(at, since, load)
            ended += memory.seen[-1].ended
            slot_seconds += memory.seen[-1].slot_seconds
        self._of_pool.note(at, ended, slot_seconds)
        self.recollect(loads, at)

    def recollect(self, loads: Mapping[int, QueueLoad], at: float) -> None:
        """Put into each load what is remembered of its queue since the last look."""
        # With other queues waiting, runs queued too far ahead would take their slots.
        alone = sum(load.ready or load.queued > 0 for load in loads.values()) == 1
        for tenant, load in loads.items():
            memory = self._of(tenant)
            load.served = memory.served
            load.turnover = memory.freed_per_second(self._looked_at, TURNOVER_SECONDS) * self._ahead
            if alone:
                load.turnover = max(load.turnover, memory.ran_dry)
            load.ended_recently, load.per_place = memory.ended_recently(), memory.per_place()
            load.fitting, load.ended_lately = memory.fitting(self._of_pool), memory.length.ended
            load.keeps_to_own = abs(at - memory.kept_to_own_at) < KEEPS_TO_OWN_SECONDS
            load.quick = memory.freed_per_second(self._looked_at, QUICK_SECONDS) >= QUICK_PER_SECOND

    def _of(self, tenant: int) -> QueueMemory:
        memory = self.get(tenant)
        if memory is None:
            memory = self[tenant] = QueueMemory(self._floor, self._lengths.pop(tenant, RunLength()))
        return memory
