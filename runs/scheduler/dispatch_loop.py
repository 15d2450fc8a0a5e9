"""Dispatch the ready runs of the pools held, and offer the wake-ups of each pass to the publishers."""

import time
from collections import defaultdict

from django.conf import settings

from runs.scheduler.broker.config import queue_version
from runs.scheduler.broker.publisher import Publishers
from runs.scheduler.dispatch.dispatch import Dispatched, dispatch_pool, keep_queued_since
from runs.scheduler.dispatch.load import PoolMemory
from runs.scheduler.observer import PassKind
from runs.scheduler.partitions.lock_session import POOLS, LockSession
from runs.scheduler.partitions.share import SliceHolder
from runs.sql import change, rows

PASS_SECONDS = 0.1
# While windows are full: their turnover is queued further ahead than this.
FULL_SECONDS = 0.05
# For so long after a pool's last ready run it gets passes while something is queued: wake-ups may be owed for it, or
# claims may have taken less than expected. Longer than the pause between two counts of a large pool.
QUEUED_SECONDS = 2.0
# A pass has a fixed cost. After a small one, runs gather for this long before the next.
GATHER_SECONDS = 0.02
SMALL_PASS = 500
# While scans are slow (decision 20), it is so many times what one takes, and a part of a second at the most.
SCANS_PER_GATHERING = 10
MAX_GATHER_SECONDS = 0.25


def gather_seconds(scan_seconds: float) -> float:
    """Return how long runs gather for the next pass: longer while each pass reads what a held transaction keeps."""
    return max(GATHER_SECONDS, min(MAX_GATHER_SECONDS, SCANS_PER_GATHERING * scan_seconds))


class DispatchLoop(SliceHolder):
    """Make passes over the pools held that have ready runs, may have some, or have places without a wake-up."""

    def __init__(self, session: LockSession, publishers: Publishers) -> None:
        super().__init__(session, POOLS, [])
        self.publishers = publishers
        # The name of each pool's broker, and of pools taken over the one that was declared.
        self.brokers: dict[int, str] = {}
        self._declared: dict[int, str] = {}
        self.memories: dict[int, PoolMemory] = {}
        # By pool, until when places without a wake-up get passes without a ready run.
        self._busy: dict[int, float] = {}
        self._not_before = 0.0

    def _read_universe(self) -> None:
        self.brokers = dict(rows(self.session.connection, "pools"))
        self.slices.universe = set(self.brokers)

    def step(self) -> float:
        time.sleep(max(0.0, self._not_before - time.monotonic()))
        self.balance()
        brokers = {pool: self.brokers[pool] for pool in self.slices.held}
        if brokers != self._declared:
            self._take_over(brokers)
        now = time.monotonic()
        # The probe reads the index from its beginning. While that is slow, a pass that begins elsewhere costs less.
        unprobed = {pool for pool in self.slices.held if not self.memories[pool].ready.is_due(now)}
        probed = {"pools": sorted(self.slices.held - unprobed)}
        ready = {pool for (pool,) in rows(self.session.connection, "pools_with_ready_runs", probed)}
        # A pool whose last ready run is gone gets one more pass, so that its queues show no stale reason.
        due = sorted(ready | unprobed | (self._busy.keys() & self.slices.held))
        queued = {pool for pool, memory in self.memories.items() if memory.counts.queued}
        waiting = {pool: until for pool, until in self._busy.items() if pool in queued and now < until}
        self._busy = waiting | dict.fromkeys(ready, now + QUEUED_SECONDS)
        return min((self._dispatch(pool) for pool in due), default=PASS_SECONDS)

    def _take_over(self, brokers: dict[int, str]) -> None:
        """Name and declare the broker queues of the pools held, after one came, went or moved."""
        self.memories = {pool: self.memories.get(pool, PoolMemory()) for pool in brokers}
        versions = [queue_version(broker) for broker in brokers.values()]
        values = {"pools": list(brokers), "versions": versions, "prefix": settings.QUEUE_PREFIX}
        change(self.session.connection, "name_pool_queues", values)
        change(self.session.connection, "rename_queues", values)
        broker_queues = defaultdict(set)
        pools = {"pools": list(brokers)}
        for pool, broker_queue in rows(self.session.connection, "broker_queues_of_pools", pools):
            broker_queues[brokers[pool]].add(broker_queue)
        self.publishers.declare_only(broker_queues)
        self._declared = brokers

    def _dispatch(self, pool: int) -> float:
        broker = self._declared[pool]
        began = time.monotonic()
        notice = self.publishers.notice(broker)
        memory, done = self.memories[pool], Dispatched(waiting=True)
        with memory.batch.one_pass():
            done = dispatch_pool(self.session.connection, pool, self.now(), memory, notice)
        # After the commit: a wake-up that came before it would find nothing to claim.
        self.publishers.declare(broker, done.broker_queues)
        self.publishers.offer(broker, done.wakeups)
        keep_queued_since(self.session.connection, pool, memory)
        self.finish_pass(PassKind.DISPATCH, done, began)
        if done.queued < SMALL_PASS:
            self._not_before = time.monotonic() + gather_seconds(memory.ready.pace.seconds)
        if done.queued or done.blocked:
            return 0.0
        # A pool with so many queues that a pass takes long gets fewer passes, not all the time there is.
        return max(FULL_SECONDS if done.waiting else PASS_SECONDS, time.monotonic() - began)
