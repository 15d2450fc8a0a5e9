"""Permits to the brokers: "this lane has work". Losing or doubling one costs time, never truth (promise 5).

One publisher and breaker per broker, in a thread of its own. Nobody ever waits for it: what does not fit into its
memory is dropped, and what the broker did not confirm is not asked after; heartbeats serve what permits miss.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice

from runs.broker_session import Bell, BrokerSilent, Session
from runs.brokers import Broker, why_away
from runs.permits import Permit

logger = logging.getLogger(__name__)

MOST_IN_MEMORY = 20_000
# While the breaker is open: enough to see whether the broker works again.
PROBE = 100
BATCH = 500
DECLARED_AT_ONCE = 50
IDLE_SECONDS = 0.5
SHORTEST_PAUSE = 0.25
# A broker that is back, or another one in its place, is in use a second or two later.
LONGEST_PAUSE = 2.0
# A connection that lived for so long did not fail at once.
LASTING_SECONDS = 10.0
AWAY = "broker"
UNKNOWN = "unknown broker"


class Publisher:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stopping = False
        # Of the breaker: open while the broker is away or confirms nothing.
        self.broken = False
        self._silent = False
        self.confirmed = 0
        self.nacked = 0
        self.dropped = 0
        self._permits: deque[Permit] = deque()
        self._queues: set[str] = set()
        self._undeclared: set[str] = set()
        self._lock = threading.Lock()
        self._bell = Bell()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """Permits offered and not sent yet."""
        return len(self._permits)

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name=f"beatkeeper-publish-{self.broker.name}", daemon=True
        )
        self._thread.start()

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def declare(self, queues: Iterable[str]) -> None:
        """Further queues that the broker must hold, now and after each reconnect."""
        with self._lock:
            new = set(queues) - self._queues
            self._queues |= new
            self._undeclared |= new
        if new:
            self._bell.ring()

    def declare_only(self, queues: Iterable[str]) -> None:
        """These and no others; the others are not deleted, somebody else may use them."""
        with self._lock:
            self._queues &= set(queues)
            self._undeclared &= self._queues
        self.declare(queues)

    def offer(self, permits: Iterable[Permit]) -> None:
        offered = list(permits)
        with self._lock:
            room = max(0, (PROBE if self.broken else MOST_IN_MEMORY) - len(self._permits))
            self._permits.extend(islice(offered, room))
            self.dropped += max(0, len(offered) - room)
        if offered:
            self._bell.ring()

    def _run(self) -> None:
        failures = 0
        while not self.stopping:
            began_at = time.monotonic()
            confirmed = self.confirmed
            try:
                with Session(self.broker, failures) as session:
                    self._serve(session)
            except Exception as error:  # any broker trouble ends the session and nothing else
                # A broker under an alarm lets us connect again at once; only a confirmation shows that it works.
                self._silent = isinstance(error, BrokerSilent)
                self._break(why_away(error))
            if self.confirmed > confirmed or time.monotonic() - began_at > LASTING_SECONDS:
                failures = 0
            failures += 1
            self._pause(min(LONGEST_PAUSE, SHORTEST_PAUSE * 2 ** min(failures - 1, 8)))

    def _serve(self, session: Session) -> None:
        with self._lock:
            self._undeclared = set(self._queues)
        while not self.stopping:
            session.listen(self._bell, self._patience(session))
            self._count(session)
            if session.blocked:
                self._break("it is under an alarm")
                continue
            session.declare(self._take_undeclared())
            session.send(self._take(session.room))
            with self._lock:
                self._permits.extendleft(session.take_returned())

    def _patience(self, session: Session) -> float:
        with self._lock:
            busy = self._undeclared or (self._permits and session.room)
        return 0.0 if busy and not session.blocked else IDLE_SECONDS

    def _count(self, session: Session) -> None:
        """A confirmation closes the breaker; a broker that was not silent before has to have our queues only."""
        self.confirmed += session.confirmed
        self.nacked += session.nacked
        works = session.confirmed or not (self._silent or self._undeclared or session.blocked)
        session.confirmed = session.nacked = 0
        if works and self.broken:
            logger.warning("%s is back", self.broker)
            self.broken = self._silent = False

    def _take_undeclared(self) -> list[str]:
        with self._lock:
            return [self._undeclared.pop() for _ in range(min(DECLARED_AT_ONCE, len(self._undeclared)))]

    def _take(self, room: int) -> list[Permit]:
        with self._lock:
            return [self._permits.popleft() for _ in range(min(BATCH, room, len(self._permits)))]

    def _break(self, why: str) -> None:
        if not self.broken:
            logger.warning("%s is away (%s): workers are fed by their heartbeats", self.broker, why)
        with self._lock:
            self.broken = True
            self.dropped += len(self._permits)
            self._permits.clear()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < end:
            time.sleep(0.05)


class Publishers:
    """One for each broker: a dead one delays nobody else's permits."""

    def __init__(self, brokers: Mapping[str, Broker]) -> None:
        self.by_broker = {name: Publisher(broker) for name, broker in brokers.items()}
        self._unknown: set[str] = set()

    def start(self) -> None:
        for publisher in self.by_broker.values():
            publisher.start()

    def stop(self) -> None:
        """Sets flags and nothing else: it may be called from a signal handler."""
        for publisher in self.by_broker.values():
            publisher.stopping = True

    def join(self, until: float) -> None:
        for publisher in self.by_broker.values():
            publisher.join(max(0.0, until - time.monotonic()))

    def notice(self, broker: str) -> str:
        """What lanes of its pools show while they go on without permits."""
        publisher = self.by_broker.get(broker)
        if publisher is None:
            return UNKNOWN if broker else ""
        return AWAY if publisher.broken else ""

    def declare(self, broker: str, queues: Iterable[str]) -> None:
        if publisher := self._of(broker):
            publisher.declare(queues)

    def declare_only(self, queues: Mapping[str, Iterable[str]]) -> None:
        """By broker: all the queues of the pools dispatched here."""
        for name, publisher in self.by_broker.items():
            publisher.declare_only(queues.get(name, ()))

    def offer(self, broker: str, permits: Iterable[Permit]) -> None:
        if publisher := self._of(broker):
            publisher.offer(permits)

    def _of(self, broker: str) -> Publisher | None:
        """Without a broker of its own the platform sends no permits at all: that is standalone mode."""
        if broker and broker not in self.by_broker and broker not in self._unknown:
            self._unknown.add(broker)
            logger.error(
                "BEATKEEPER_BROKERS names no broker %s, which a pool wants: it gets no permits", broker
            )
        return self.by_broker.get(broker)
