"""Publish wake-ups to the brokers: "there is work". Losing or doubling one costs time, never truth (promise 5).

Each broker has one publisher and one breaker, in a thread of its own. Dispatch never waits for it: wake-ups that do not
fit into its memory are dropped, and unconfirmed ones are not sent again. Heartbeats serve the runs that wake-ups miss.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice

from runs.reasons import Reason
from runs.scheduler.broker.config import Broker, why_away
from runs.scheduler.broker.message import Wakeup
from runs.scheduler.broker.session import AmqpSession
from runs.scheduler.broker.transport import BrokerSession, BrokerSilent
from runs.scheduler.broker.wake_socket import WakeSocket

logger = logging.getLogger(__name__)

MAX_IN_MEMORY = 20_000
# So many wake-ups are kept while the breaker is open: enough to see whether the broker works again.
PROBE = 100
BATCH = 500
MAX_DECLARED_AT_ONCE = 50
IDLE_SECONDS = 0.5
MIN_PAUSE = 0.25
# A broker that comes back, or another one in its place, is in use a second or two later.
MAX_PAUSE = 2.0
# After a connection of this age the pauses between tries start anew.
LASTING_SECONDS = 10.0


# By the scheme of a broker's URL. Every other scheme is AMQP, with or without TLS.
SESSIONS: dict[str, Callable[[Broker, int], BrokerSession]] = {}


def open_session(broker: Broker, attempt: int) -> BrokerSession:
    """Connect to one of the broker's addresses, each in its turn."""
    scheme = broker.address(attempt).partition(":")[0]
    return SESSIONS.get(scheme, AmqpSession)(broker, attempt)


class Publisher:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stopping = False
        # The breaker is open: the broker is away or confirms nothing.
        self.broken = False
        self._silent = False
        self.confirmed = self.nacked = self.dropped = 0
        # Offered and not sent yet.
        self.waiting: deque[Wakeup] = deque()
        self._queues: set[str] = set()
        self._undeclared: set[str] = set()
        self._lock = threading.Lock()
        self._waker = WakeSocket()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(
            target=self._run, name=f"beatkeeper-publish-{self.broker.name}", daemon=True
        )
        self._thread.start()

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def declare(self, queues: Iterable[str]) -> None:
        """Add queues that the broker must hold, now and after each reconnect."""
        with self._lock:
            new = set(queues) - self._queues
            self._queues |= new
            self._undeclared |= new
        if new:
            self._waker.wake()

    def declare_only(self, queues: Iterable[str]) -> None:
        """Replace the queues that the broker must hold; others are not deleted, another scheduler may use them."""
        with self._lock:
            self._queues &= set(queues)
            self._undeclared &= self._queues
        self.declare(queues)

    def offer(self, wakeups: Iterable[Wakeup]) -> None:
        offered = list(wakeups)
        with self._lock:
            room = max(0, (PROBE if self.broken else MAX_IN_MEMORY) - len(self.waiting))
            self.waiting.extend(islice(offered, room))
            self.dropped += max(0, len(offered) - room)
        if offered:
            self._waker.wake()

    def _run(self) -> None:
        failures = 0
        while not self.stopping:
            began_at = time.monotonic()
            confirmed = self.confirmed
            try:
                with open_session(self.broker, failures) as session:
                    self._serve(session)
            except Exception as error:  # any broker trouble ends the session and nothing else
                # A broker under an alarm accepts connections again at once; only a confirmation shows that it works.
                self._silent = isinstance(error, BrokerSilent)
                self._break(why_away(error))
            if self.confirmed > confirmed or time.monotonic() - began_at > LASTING_SECONDS:
                failures = 0
            failures += 1
            self._pause(min(MAX_PAUSE, MIN_PAUSE * 2 ** min(failures - 1, 8)))

    def _serve(self, session: BrokerSession) -> None:
        with self._lock:
            self._undeclared = set(self._queues)
        while not self.stopping:
            with self._lock:
                busy = self._undeclared or (self.waiting and session.room)
            session.listen(self._waker, 0.0 if busy and not session.blocked else IDLE_SECONDS)
            self._count(session)
            if session.blocked:
                self._break("it is under an alarm")
                continue
            session.declare(self._take_undeclared())
            session.send(self._take(session.room))
            with self._lock:
                self.waiting.extendleft(session.take_returned())

    def _count(self, session: BrokerSession) -> None:
        """Add up confirmations and close the breaker.

        A confirmation shows that the broker works. If it was not silent before, that our queues exist is enough.
        """
        self.confirmed += session.confirmed
        self.nacked += session.nacked
        works = session.confirmed or not (self._silent or self._undeclared or session.blocked)
        session.confirmed = session.nacked = 0
        if works and self.broken:
            logger.warning("%s is back", self.broker)
            self.broken = self._silent = False

    def _take_undeclared(self) -> list[str]:
        with self._lock:
            return [self._undeclared.pop() for _ in range(min(MAX_DECLARED_AT_ONCE, len(self._undeclared)))]

    def _take(self, room: int) -> list[Wakeup]:
        with self._lock:
            return [self.waiting.popleft() for _ in range(min(BATCH, room, len(self.waiting)))]

    def _break(self, why: str) -> None:
        if not self.broken:
            logger.warning("%s is away (%s): workers are fed by their heartbeats", self.broker, why)
        with self._lock:
            self.broken = True
            self.dropped += len(self.waiting)
            self.waiting.clear()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self.stopping and time.monotonic() < end:
            time.sleep(0.05)


class Publishers:
    """One publisher for each broker, so that a dead broker delays no other's wake-ups.

    Brokers go by the name that pools call them; no call of the dispatch loop blocks.
    """

    def __init__(self, brokers: Mapping[str, Broker]) -> None:
        self.by_broker = {name: Publisher(broker) for name, broker in brokers.items()}
        self._unknown: set[str] = set()

    def start(self) -> None:
        for publisher in self.by_broker.values():
            publisher.start()

    def stop(self) -> None:
        """Set flags and nothing else: a signal handler may call it."""
        for publisher in self.by_broker.values():
            publisher.stopping = True

    def join(self, until: float) -> None:
        for publisher in self.by_broker.values():
            publisher.join(max(0.0, until - time.monotonic()))

    def notice(self, broker: str) -> str:
        """Return the reason that queues of the broker's pools show while they work without wake-ups."""
        publisher = self.by_broker.get(broker)
        if publisher is None:
            return Reason.UNKNOWN_BROKER if broker else ""
        return Reason.BROKER_AWAY if publisher.broken else ""

    def declare(self, broker: str, queues: Iterable[str]) -> None:
        """Add broker queues that must exist, now and after each reconnect."""
        if publisher := self._of(broker):
            publisher.declare(queues)

    def declare_only(self, queues: Mapping[str, Iterable[str]]) -> None:
        """Replace the queues of each broker by those of the pools dispatched here; none is deleted."""
        for name, publisher in self.by_broker.items():
            publisher.declare_only(queues.get(name, ()))

    def offer(self, broker: str, wakeups: Iterable[Wakeup]) -> None:
        """Take wake-ups to send; what does not fit is dropped."""
        if publisher := self._of(broker):
            publisher.offer(wakeups)

    def _of(self, broker: str) -> Publisher | None:
        """Return the broker's publisher; none in standalone mode, where no wake-ups are sent at all."""
        if broker and broker not in self.by_broker and broker not in self._unknown:
            self._unknown.add(broker)
            logger.error(
                "BEATKEEPER_BROKERS names no broker %s, which a pool uses: it gets no wake-ups", broker
            )
        return self.by_broker.get(broker)
