"""Dispatch ready runs: choose which runs of a pool's queues may be claimed now, and mark them queued.

One scheduler decides for all queues of a pool, so shares and limits have one decider. Runs are marked queued and that
is committed; only then wake-ups go out, at most one for each place. Whether they arrive changes nothing but time.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from fractions import Fraction
from math import ceil

from runs import transitions
from runs.events import Event, QueuesHeld, RunsBlocked, RunsQueued, emit
from runs.reasons import NOT_HELD, Reason
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.dispatch import fair_share as shares
from runs.scheduler.dispatch.counts import PoolCounts
from runs.scheduler.dispatch.fair_share import QueueLoad
from runs.scheduler.dispatch.load import MAX_IN_A_PASS, DispatchedPool, PoolLoad, PoolMemory
from runs.scheduler.dispatch.queues import QueueRow
from runs.scheduler.dispatch.ready_queues import BEGINNING, Place
from runs.scheduler.dispatch.selection import Candidate, Chosen, Gates, choose
from runs.sql import Connection, array, change, rows
from scheduler_project.sdk.ledger.interface import ALL_TENANTS

# Runs of a queue that are read beyond those that may go, after a pass that met some that may not.
MIN_DEPTH = 64
MAX_DEPTH = 1024
# Room given to queues that have no runs for it is passed on to the others so many times.
MAX_ROUNDS = 4
# A wake-up is followed by its claim sooner than this.
LATE_SECONDS = 0.2
# The instant is written when it is a second later, or after so many runs: a claim reads their dead entries.
QUEUED_SINCE_STEP = timedelta(seconds=1)
MARKED_SINCE = 500
# The columns of a queue that a pass writes.
WRITTEN = ("tenant_id", "reason", "tokens", "tokens_at", "day", "day_count", "queued")


@dataclass(slots=True)
class Dispatched:
    queued: int = 0
    blocked: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    # Queues that are held since this pass, by tenant, with the reason.
    held: dict[int, str] = field(default_factory=dict)
    wakeups: list[Wakeup] = field(default_factory=list)
    # Broker queues of tenants with workers of their own.
    broker_queues: list[str] = field(default_factory=list)
    # Ready runs were left, and windows may have room for them soon.
    waiting: bool = False

    def counts(self) -> dict[str, int]:
        return {
            "queued": self.queued,
            "blocked": self.blocked,
            "wakeups": len(self.wakeups),
            "held_queues": len(self.held),
        }

    def events(self, pool_id: int) -> Iterator[Event]:
        if self.queued:
            yield RunsQueued(pool_id=pool_id, runs=self.queued)
        if self.blocked:
            yield RunsBlocked(pool_id=pool_id, reasons=self.reasons)
        if self.held:
            yield QueuesHeld(pool_id=pool_id, reasons=self.held)


def dispatch_pool(
    connection: Connection, pool_id: int, now: datetime, memory: PoolMemory | None = None, notice: str = ""
) -> Dispatched:
    """Make one pass over a pool, in one transaction; the caller publishes the wake-ups after it.

    1. Find the queues with ready runs that no suspension holds, and make those that are new.
    2. Recall what has become too much, and share out the pool's free slots.
    3. Lock the best runs of each queue in rank order; block what may not go for a reason of its own.
    4. Mark the rest queued, and write what this took of each queue's limits.
    5. Make a wake-up for each place, as far as slots are free; owe the others.
    """
    memory = memory if memory is not None else PoolMemory()
    done = Dispatched()
    try:
        with connection.transaction():
            counting = memory.counts.are_due(now.timestamp())
            found = rows(connection, "pool", {"pool": pool_id, "count": counting})
            if found:
                pool = DispatchedPool(pool_id, *found[0])
                if not counting:
                    pool = pool._replace(queues=memory.counts.pool_queues, tenants=memory.counts.pool_tenants)
                done = DispatchPass(connection, pool, now, memory, notice, counting).run()
    except BaseException:
        # What a rolled-back pass noted is not so: the next one counts.
        memory.counts = PoolCounts()
        raise
    # After the commit: what a rolled-back pass marked is as it was.
    emit(*done.events(pool_id))
    return done


def keep_queued_since(connection: Connection, pool_id: int, memory: PoolMemory) -> None:
    """Write the instant of the oldest queued run, when it is enough later than the one stored.

    Claims pass over index entries before it. Only this session marks runs of the pool as queued, so it holds until the
    next pass. It is written after a pass and its wake-ups: a lock held within it would make whoever edits the pool
    wait. If the clock was set back, so is the instant.
    """
    step = QUEUED_SINCE_STEP if memory.marked < MARKED_SINCE else timedelta(microseconds=1)
    if timedelta(0) <= memory.oldest_queued_at - memory.queued_since < step:
        return
    if change(connection, "keep_queued_since", {"pool": pool_id, "since": memory.oldest_queued_at}):
        memory.marked = 0


@dataclass(eq=False, repr=False)
class DispatchPass(PoolLoad):
    """One pass over one pool, in the caller's transaction."""

    done: Dispatched = field(default_factory=Dispatched)
    # Places that this pass has filled: of a tenant's own workers, by tenant; of all others, under None.
    filled: defaultdict[int | None, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    # Runs that this pass has handed over, by tenant.
    handed: Counter[int] = field(default_factory=Counter)

    def run(self) -> Dispatched:
        self._see_workers()
        self._find_queues()
        self._read_queues()
        self._make_queues()
        self._uncount_returned()
        if self.memory.workers.nodes:
            self.done.waiting = bool(self.ready)
            self._count_what_only_own_workers_know()
            self._count_limited()
            self._weigh()
            self._recall()
            self._hand_over_in_rounds()
            self.done.wakeups = self._wakeups()
            self.done.broker_queues = [
                queue.broker_queue for tenant, queue in self.queues.items() if self.slots[tenant]
            ]
        self._write_queues()
        self._keep_counts()
        return self.done

    def _hand_over_in_rounds(self) -> None:
        """Give slots to the queue furthest below its share, and pass on what it cannot use.

        So no queue waits for slots that stay idle. At most the batch size is handed over.
        """
        for _ in range(MAX_ROUNDS):
            own, given = self._share_out()
            if not given:
                break
            round_handed = self._hand_over(own, given)
            if all(round_handed[tenant] == count for tenant, count in given.items()):
                break
            for tenant, count in given.items():
                self.loads[tenant].ready = round_handed[tenant] == count

    def _share_out(self) -> tuple[Counter[int], Counter[int]]:
        """Return how many more runs each queue may hand over to its own workers, and in all."""
        left = self.memory.batch.size - self.handed.total()
        own, loads = shares.share_out_own(self._loads_now(), left)
        tenants = max(self.pool.queues, self.pool.tenants)
        kept = shares.reserve(self.shared_slots, tenants)
        given = shares.share_out(self.shared_slots, loads, tenants, kept, left - own.total())
        return own, own + Counter(given)

    def _loads_now(self) -> Iterator[QueueLoad]:
        for tenant, load in self.loads.items():
            count = self.handed[tenant]
            most = None if load.most is None else load.most - count
            yield replace(load, queued=load.queued + count, most=most) if count else load
        yield self.rest

    def _hand_over(self, own: Counter[int], given: Counter[int]) -> Counter[int]:
        """Mark the best runs of each queue, up to what it was given, and return how many each handed over."""
        candidates = self._best(given)
        further, read_to = self._read_on(given)
        known = {run.ctid for run in candidates}
        candidates += [run for run in further if run.ctid not in known]
        reasons = {run.ctid: reason for run in candidates if (reason := self._own_reason(run))}
        limited = {run.limited for run in candidates if run.limited and run.ctid not in reasons}
        gates = Gates(self.connection, limited)
        chosen = choose(candidates, reasons, given, own, self.memory.workers.own_targets, gates)
        self._remember(chosen, given, read_to)
        transitions.mark_queued(self.connection, [run.ctid for run in chosen.going], self.earliest_queued_at)
        self.done.blocked += transitions.mark_blocked(self.connection, chosen.blocked)
        self.done.reasons.update(chosen.blocked.values())
        self.done.queued += len(chosen.going)
        self.memory.marked += len(chosen.going)
        self._fill_places(chosen.going)
        return chosen.handed

    def _remember(self, chosen: Chosen, given: Counter[int], read_to: Mapping[int, Place]) -> None:
        for tenant, count in chosen.to_own.items():
            self.loads[tenant].own_queued += count
        for tenant in given:
            queue = self.memory.queues[tenant]
            if tenant not in chosen.kept_to_own:
                queue.read_to = None
            elif chosen.handed[tenant] < given[tenant]:
                queue.kept_to_own_at = self.now.timestamp()
                queue.read_to = read_to.get(tenant, BEGINNING if queue.depth == MAX_DEPTH else None)
            # Where the best runs may not go, it is read further ahead: they must not hide those that may.
            deeper = min(MAX_DEPTH, max(MIN_DEPTH, 2 * queue.depth))
            queue.depth = deeper if chosen.left_behind[tenant] else 0

    def _best(self, given: Mapping[int, int]) -> list[Candidate]:
        depth, wanted = MAX_IN_A_PASS, []
        for tenant, count in given.items():
            more = min(depth, self.memory.queues[tenant].depth)
            depth -= more
            wanted.append(count + more)
        return self._read({tenant: self.memory.ready.before_first(tenant) for tenant in given}, wanted)

    def _read(self, behind: Mapping[int, Place], counts: Sequence[int]) -> list[Candidate]:
        """Read and lock, of each queue, so many runs behind this rank and id."""
        ranks, ids = zip(*behind.values(), strict=True)
        values = {
            "pool": self.pool.id,
            "tenants": list(behind),
            "ranks": array(ranks),
            "ids": array(ids),
            "counts": counts,
            "need_jobs": self.suspensions.need_jobs,
        }
        return [Candidate(*row) for row in rows(self.connection, "next_ready", values)]

    def _read_on(self, tenants: Iterable[int]) -> tuple[list[Candidate], dict[int, Place]]:
        """Read on behind the best runs of queues whose best wait for workers of their own, pass by pass.

        However many these are, they hide nothing from the slots for all tenants. Returns the runs and how far it was
        read.
        """
        behind = {tenant: at for tenant in tenants if (at := self.memory.queues[tenant].read_to)}
        if not behind:
            return [], {}
        most = max(MIN_DEPTH, MAX_DEPTH // len(behind))
        candidates = self._read(behind, [most] * len(behind))
        read = Counter(run.tenant_id for run in candidates)
        last = {run.tenant_id: (run.rank, run.id) for run in candidates}
        # From the end it begins anew: what came meanwhile may be more urgent.
        return candidates, {tenant: last[tenant] if read[tenant] == most else BEGINNING for tenant in behind}

    def _own_reason(self, run: Candidate) -> str:
        if run.held_by is not None:
            return run.held_by
        if run.tags is not None:
            tags = json.loads(run.tags)
            suspension = self.suspensions.holds(run.tenant_id, self.pool.id, run.job_id, tags, self.now)
            if suspension is not None:
                return suspension.word
        if not self.queues[run.tenant_id].allowed:
            return Reason.NOT_ALLOWED
        # Before what is known, which is read of these alone.
        if run.target_key not in self.memory.workers.exported:
            return Reason.NOT_EXPORTED
        if not self.memory.workers.knows(run.tenant_id, run.target_key):
            return Reason.UNKNOWN_TARGET
        return ""

    def _fill_places(self, going: Sequence[Candidate]) -> None:
        """Count the places that these runs fill.

        Workers for all tenants take runs of all queues, so these fill places together. What a tenant's own workers know
        fills their places as well: who of both comes first has it.
        """
        workers = self.memory.workers
        for run in going:
            tenant, load = run.tenant_id, self.loads[run.tenant_id]
            self.handed[tenant] += 1
            part = Fraction(1, load.per_place_among(load.queued + self.handed[tenant]))
            if load.has_own_workers and run.target_key in workers.targets.get(tenant, ()):
                self.filled[tenant] += part
            if run.target_key not in workers.own_targets.get(tenant, ()):
                self.filled[None] += part

    def _wakeups(self) -> list[Wakeup]:
        """Make a wake-up for each place, as far as slots are free; others are owed to the next passes.

        Who works asks for more by itself while much is queued, and a wake-up for it would find nothing.
        """
        wakeups: list[Wakeup] = []
        waiting = self._waiting_runs()
        # What was owed may have been claimed since.
        owed = {of: min(places, Fraction(waiting[of])) for of, places in self.memory.owed.items()}
        self.memory.owed = {}
        late = self._late_runs(waiting)
        for of in self.filled.keys() | owed.keys() | late.keys():
            places = max(self.filled[of] + owed.get(of, Fraction()), Fraction(late[of]))
            count = min(ceil(places), max(0, round(self._free_slots(of))))
            if count:
                broker_queue = self.pool.broker_queue if of is None else self.queues[of].broker_queue
                wakeups += [Wakeup(broker_queue, f"{self.pool.id}:{of or ALL_TENANTS}")] * count
            if places > count:
                self.memory.owed[of] = places - count
        return wakeups

    def _waiting_runs(self) -> Counter[int | None]:
        """Count what was queued before this pass, of tenants with own workers and of all."""
        waiting: Counter[int | None] = Counter()
        for tenant, load in self.loads.items():
            waiting[None] += load.queued
            if self.slots[tenant]:
                waiting[tenant] += load.queued
        return waiting

    def _late_runs(self, waiting: Counter[int | None]) -> Counter[int | None]:
        """Count what waits although it should be claimed: claims took less than their places were expected to hold.

        A wake-up may be lost as well, and what an earlier scheduler owed is not known.
        """
        at, memory = self.now.timestamp(), self.memory
        # Those of the future were handed over before the clock was set back.
        memory.handed = [(when, handed) for when, handed in memory.handed if at - LATE_SECONDS < when <= at]
        late = Counter(waiting)
        for _, handed in memory.handed:
            late.subtract(handed)
        if self.handed:
            handed = Counter[int | None](self.handed)
            handed[None] = self.handed.total()
            memory.handed.append((at, handed))
        memory.late_at = {of: when for of, when in memory.late_at.items() if at - LATE_SECONDS < when <= at}
        late = Counter({of: runs for of, runs in late.items() if runs > 0 and of not in memory.late_at})
        memory.late_at |= dict.fromkeys(late, at)
        return late

    def _free_slots(self, of: int | None) -> float:
        """Return how many slots of a tenant's own workers are free, or of all others."""
        if of is not None:
            return self.slots[of] - self.own_running[of]
        return self.shared_slots - sum(
            load.running - load.own_running for load in [*self.loads.values(), self.rest]
        )

    def _write_queues(self) -> None:
        changed = []
        for tenant, queue in self.queues.items():
            load = self.loads.get(tenant)
            queued = load.queued + self.handed[tenant] if load else 0
            occupied = self._occupied(tenant) + self.handed[tenant]
            if tenant in self.handed:
                queue = queue.spend(self.handed[tenant], self.now)
                self.memory.queues[tenant].occupied += self.handed[tenant]
            reason = self._reason(queue, occupied)
            if reason not in (queue.reason, *NOT_HELD):
                self.done.held[tenant] = reason
            if reason != queue.reason or queue is not self.stored[tenant]:
                changed.append(queue._replace(reason=reason, queued=queued))
        if changed:
            columns = {name: [getattr(queue, name) for queue in changed] for name in WRITTEN}
            change(self.connection, "write_queues", {"pool": self.pool.id, **columns})

    def _keep_counts(self) -> None:
        counts = self.memory.counts
        counts.pool_queues, counts.pool_tenants = self.pool.queues, self.pool.tenants
        counts.queued = {
            tenant: (queued, self.queues[tenant].weight)
            for tenant, load in self.loads.items()
            if (queued := load.queued + self.handed[tenant])
        }

    def _reason(self, queue: QueueRow, occupied: int) -> str:
        if queue.tenant_id in self.held:
            return self.held[queue.tenant_id]
        if queue.tenant_id not in self.ready:
            return ""
        if None not in self.slots and queue.tenant_id not in self.slots:
            return Reason.NO_LIVE_WORKER
        return (queue.limit_reached(occupied, self.now) if queue.limited else "") or self.notice
