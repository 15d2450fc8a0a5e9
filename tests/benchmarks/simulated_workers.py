"""Simulated workers: real wake-ups, claims, reports and heartbeats through the real ledger, but nothing is executed.

Each holds a slot for as long as the run's own arguments say. A process of this file is one worker of many slots, with
one connection to the database and one to the broker; it says less than a real one only about itself.
"""

import argparse
import heapq
import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import kombu

from scheduler_project.sdk.ledger.interface import (
    Beat,
    Claim,
    ClaimRequest,
    CompletedClaim,
    WorkerInfo,
    WorkQueue,
    base_token,
)
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.retries import Verdict

TASK = "bench.noop"
BEAT_SECONDS = 1.0
# A worker without a free slot keeps a wake-up no longer than this.
WAKEUP_SECONDS = 1.0
SUCCESS = Verdict("succeeded")


@dataclass
class WakeupConsumer:
    """What the broker has delivered and nobody has acted on."""

    channel: Any
    waiting: deque[tuple[float, int, Any]] = field(default_factory=deque)
    queues: dict[str, int] = field(default_factory=dict)

    def consume(self, queue: WorkQueue) -> None:
        if queue.broker_queue in self.queues:
            return
        self.queues[queue.broker_queue] = queue.id
        self.channel.basic_consume(
            queue.broker_queue,
            no_ack=False,
            callback=lambda message, queue_id=queue.id: self._arrived(queue_id, message),
        )

    def _arrived(self, queue_id: int, message: Any) -> None:
        self.waiting.append((time.monotonic(), queue_id, message.delivery_info["delivery_tag"]))


class SimulatedWorker:
    def __init__(
        self, dsn: str, broker_url: str, name: str, slots: int, feed_after: float, pool: str = "default"
    ) -> None:
        self.ledger = PostgresLedger(dsn)
        self.broker = kombu.Connection(broker_url, connect_timeout=5)
        self.broker.connect()
        channel: Any = self.broker.channel()
        # As real children do: one wake-up for each slot, kept until its run has ended.
        channel.basic_qos(0, slots, True)
        self.wakeups = WakeupConsumer(channel)
        self.slots, self.feed_after = slots, feed_after
        self.incarnation = uuid4()
        self.queues: dict[int, WorkQueue] = {}
        self.held: dict[UUID, Claim] = {}
        self.ending: list[tuple[float, UUID, int]] = []
        self.fed: deque[WorkQueue] = deque()
        self.beats = 0
        self.beat_at = 0.0
        self.leaving = False
        info = WorkerInfo(self.incarnation, name, pool, socket.gethostname(), os.getpid(), slots, [TASK])
        self._hear_of(self.ledger.register(info))

    def run(self) -> None:
        while not self.leaving:
            now = time.monotonic()
            if now >= self.beat_at:
                self._beat()
                self.beat_at = now + BEAT_SECONDS
            self._end_due(now)
            self._work_on_wakeups(now)
            self._work_on_feed()
            self._listen()
        self.ledger.leave(self.incarnation)
        self.ledger.close()

    @property
    def free(self) -> int:
        return self.slots - len(self.held)

    def _beat(self) -> None:
        self.beats += 1
        answer = self.ledger.heartbeat(
            Beat(
                incarnation=self.incarnation,
                number=self.beats,
                answered=self.beats - 1,
                slots=self.slots,
                busy=len(self.held),
                foreign_busy=0,
                held=sorted(self.held),
                draining=False,
                queues_after=max(self.queues, default=0),
                feed_after=self.feed_after,
            )
        )
        assert answer.known, "the platform holds this worker for lost"
        self._hear_of(answer.queues)
        self.fed = deque(answer.work)

    def _hear_of(self, queues: list[WorkQueue]) -> None:
        for queue in queues:
            self.queues[queue.id] = queue
            self.wakeups.consume(queue)

    def _end_due(self, now: float) -> None:
        while self.ending and self.ending[0][0] <= now:
            _, token, wakeup = heapq.heappop(self.ending)
            claim = self.held[token]
            outcome = Outcome("succeeded", claim.claimed_at, now_utc())
            self.ledger.report([CompletedClaim(claim, outcome, SUCCESS)])
            del self.held[token]
            self._ack(wakeup)

    def _work_on_wakeups(self, now: float) -> None:
        waiting = self.wakeups.waiting
        while waiting and (self.free or now - waiting[0][0] > WAKEUP_SECONDS):
            _, queue, wakeup = waiting.popleft()
            if not self.free or not self._claim(self.queues[queue], wakeup):
                self._ack(wakeup)
            if self.ending and self.ending[0][0] <= time.monotonic():
                return

    def _work_on_feed(self) -> None:
        """Queues whose wake-ups were lost, as the heartbeat's answer named them."""
        while self.fed and self.free:
            queue = self.fed[0]
            if not self._claim(queue, 0):
                self.fed.popleft()
            if self.ending and self.ending[0][0] <= time.monotonic():
                return

    def _claim(self, queue: WorkQueue, wakeup: int) -> bool:
        wanted = ClaimRequest(self.incarnation, base_token(), queue, [TASK])
        claims = self.ledger.claim(wanted)
        if not claims:
            return False
        [claim] = claims
        self.held[claim.token] = claim
        seconds = float(claim.target["kwargs"]["seconds"])
        heapq.heappush(self.ending, (time.monotonic() + seconds, claim.token, wakeup))
        return True

    def _ack(self, wakeup: int) -> None:
        if wakeup:
            self.wakeups.channel.basic_ack(wakeup)

    def _listen(self) -> None:
        """Until the next run ends or the next beat is due, or a wake-up comes."""
        now = time.monotonic()
        until = min([self.beat_at, *(ending[0] for ending in self.ending[:1])])
        if self.wakeups.waiting and self.free:
            until = now
        try:
            self.broker.drain_events(timeout=max(0.001, until - now))
            while True:
                self.broker.drain_events(timeout=0.0005)
        except (TimeoutError, OSError):
            pass


def stop_on_sigterm(worker: SimulatedWorker) -> Callable[[int, Any], None]:
    def stop(_number: int, _frame: Any) -> None:
        worker.leaving = True

    return stop


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--feed-after", type=float, default=1.0)
    parser.add_argument("--pool", default="default")
    given = parser.parse_args()
    worker = SimulatedWorker(
        os.environ["DATABASE_URL"],
        os.environ["CELERY_BROKER_URL"],
        given.name,
        given.slots,
        given.feed_after,
        given.pool,
    )
    signal.signal(signal.SIGTERM, stop_on_sigterm(worker))
    worker.run()


if __name__ == "__main__":
    main()
