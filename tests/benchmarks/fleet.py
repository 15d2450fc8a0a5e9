"""Simulated workers: real permits, claims, reports and heartbeats through the real ledger, but nothing is executed.

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

from scheduler_project.sdk.ledger import Beat, Claim, Ended, Lane, Wanted, WorkerInfo, base_token
from scheduler_project.sdk.outcomes import Outcome, now_utc
from scheduler_project.sdk.postgres import PostgresLedger
from scheduler_project.sdk.retries import Verdict

TASK = "bench.noop"
BEAT_SECONDS = 1.0
# A worker without a free slot keeps a permit no longer than this.
PERMIT_SECONDS = 1.0
SUCCESS = Verdict("succeeded")


@dataclass
class Permits:
    """What the broker has delivered and nobody has acted on."""

    channel: Any
    waiting: deque[tuple[float, int, Any]] = field(default_factory=deque)
    lanes: dict[str, int] = field(default_factory=dict)

    def consume(self, lane: Lane) -> None:
        if lane.queue in self.lanes:
            return
        self.lanes[lane.queue] = lane.id
        self.channel.basic_consume(
            lane.queue,
            no_ack=False,
            callback=lambda message, lane_id=lane.id: self._arrived(lane_id, message),
        )

    def _arrived(self, lane_id: int, message: Any) -> None:
        self.waiting.append((time.monotonic(), lane_id, message.delivery_info["delivery_tag"]))


class SimulatedWorker:
    def __init__(
        self, dsn: str, broker_url: str, name: str, slots: int, feed_after: float, pool: str = "default"
    ) -> None:
        self.ledger = PostgresLedger(dsn)
        self.broker = kombu.Connection(broker_url, connect_timeout=5)
        self.broker.connect()
        channel: Any = self.broker.channel()
        # As real children do: one permit for each slot, kept until its run has ended.
        channel.basic_qos(0, slots, True)
        self.permits = Permits(channel)
        self.slots, self.feed_after = slots, feed_after
        self.incarnation = uuid4()
        self.lanes: dict[int, Lane] = {}
        self.held: dict[UUID, Claim] = {}
        self.ending: list[tuple[float, UUID, int]] = []
        self.fed: deque[int] = deque()
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
            self._work_on_permits(now)
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
                lanes_after=max(self.lanes, default=0),
                feed_after=self.feed_after,
            )
        )
        assert answer.known, "the platform holds this worker for lost"
        self._hear_of(answer.lanes)
        self.fed = deque(lane.id for lane in answer.work)

    def _hear_of(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            self.lanes[lane.id] = lane
            self.permits.consume(lane)

    def _end_due(self, now: float) -> None:
        while self.ending and self.ending[0][0] <= now:
            _, token, permit = heapq.heappop(self.ending)
            claim = self.held[token]
            outcome = Outcome("succeeded", claim.claimed_at, now_utc())
            self.ledger.report([Ended(claim, outcome, SUCCESS)])
            del self.held[token]
            self._ack(permit)

    def _work_on_permits(self, now: float) -> None:
        waiting = self.permits.waiting
        while waiting and (self.free or now - waiting[0][0] > PERMIT_SECONDS):
            _, lane, permit = waiting.popleft()
            if not self.free or not self._claim(lane, permit):
                self._ack(permit)
            if self.ending and self.ending[0][0] <= time.monotonic():
                return

    def _work_on_feed(self) -> None:
        """Lanes whose permits were lost, as the heartbeat's answer named them."""
        while self.fed and self.free:
            lane = self.fed[0]
            if not self._claim(lane, 0):
                self.fed.popleft()
            if self.ending and self.ending[0][0] <= time.monotonic():
                return

    def _claim(self, lane: int, permit: int) -> bool:
        wanted = Wanted(self.incarnation, base_token(), self.lanes[lane], [TASK])
        claims = self.ledger.claim(wanted)
        if not claims:
            return False
        [claim] = claims
        self.held[claim.token] = claim
        seconds = float(claim.target["kwargs"]["seconds"])
        heapq.heappush(self.ending, (time.monotonic() + seconds, claim.token, permit))
        return True

    def _ack(self, permit: int) -> None:
        if permit:
            self.permits.channel.basic_ack(permit)

    def _listen(self) -> None:
        """Until the next run ends or the next beat is due, or a permit comes."""
        now = time.monotonic()
        until = min([self.beat_at, *(ending[0] for ending in self.ending[:1])])
        if self.permits.waiting and self.free:
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
