"""One connection to an AMQP broker: a channel per declaration, which a refusal closes, and one with pipelined confirms.

Every wait has an end, also the ones inside py-amqp. Any error is raised, and the publisher opens another session.
"""

import logging
import select
import time
from collections.abc import Iterable
from typing import Self

import amqp

from runs.scheduler.broker.config import DEAD_MESSAGES, DEAD_MESSAGES_KEPT, REJECTED_ALONE, Broker
from runs.scheduler.broker.connection import connect
from runs.scheduler.broker.message import MessageTemplate, Wakeup
from runs.scheduler.broker.transport import BrokerSilent
from runs.scheduler.broker.wake_socket import WakeSocket

logger = logging.getLogger(__name__)

WINDOW = 5000
WAKEUPS_IN_A_WRITE = 100
# Confirmations gather for this long: reading each as it comes would cost more than sending.
GATHER_SECONDS = 0.002
TICK_SECONDS = 1.0
REFUSED_SECONDS = 30.0
# A broker that confirms nothing for this long while wake-ups wait is taken for gone.
SILENT_SECONDS = 5.0


class AmqpSession:
    """The broker session of AMQP 0.9.1, as RabbitMQ speaks it."""

    def __init__(self, broker: Broker, attempt: int = 0) -> None:
        self.broker = broker
        self.declared: set[str] = set()
        self.confirmed = self.nacked = 0
        # During a memory or disk alarm the broker reads nothing more from us, and has reported it.
        self.blocked = False
        self._refused: dict[str, float] = {}
        # Sent and not confirmed yet, by number.
        self.waiting: dict[int, Wakeup] = {}
        self._oldest = 1
        self._sent = 0
        self._progress_at = self._tick_at = time.monotonic()
        self._returned: list[Wakeup] = []
        self._link = connect(broker.address(attempt))
        self._link.on_blocked, self._link.on_unblocked = self._on_blocked, self._on_unblocked
        self._channel = self._link.channel()
        self._channel.confirm_select()
        self._link.watch_acks(self._channel.channel_id, self._on_ack)
        self._channel.events["basic_nack"].add(self._on_nack)
        self._channel.events["basic_return"].add(self._on_return)
        self._template = MessageTemplate(self._channel.channel_id)
        self._declare_dead_messages()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None and not self.blocked:
                self._link.close()
            self._link.collect()
        except Exception:  # a broken connection cannot even be closed
            logger.debug("the connection was gone already")

    @property
    def room(self) -> int:
        return 0 if self.blocked else WINDOW - len(self.waiting)

    def _declare_dead_messages(self) -> None:
        """Declare the exchange for rejected messages before the first queue that names it.

        Without the exchange the broker drops what is rejected.
        """
        channel = self._link.channel()
        try:
            channel.exchange_declare(DEAD_MESSAGES, "headers", durable=True, auto_delete=False)
            channel.queue_declare(
                DEAD_MESSAGES, durable=True, auto_delete=False, arguments=DEAD_MESSAGES_KEPT
            )
            channel.queue_bind(DEAD_MESSAGES, DEAD_MESSAGES, arguments=REJECTED_ALONE)
            channel.close()
        except amqp.ChannelError as error:
            text = "%s refuses %s; messages that no worker can read are dropped there: %s"
            logger.error(text, self.broker, DEAD_MESSAGES, error)

    def declare(self, queues: Iterable[str]) -> None:
        for queue in sorted(queues):
            channel = self._link.channel()
            try:
                channel.queue_declare(queue, durable=True, auto_delete=False, arguments=self.broker.arguments)
                channel.close()
            except amqp.PreconditionFailed as error:
                logger.error("queue %s exists with other arguments and is used as it is: %s", queue, error)
            except amqp.ChannelError as error:
                logger.error("%s refuses queue %s, which has no wake-ups now: %s", self.broker, queue, error)
                self._refused[queue] = time.monotonic() + REFUSED_SECONDS
                continue
            self._refused.pop(queue, None)
            self.declared.add(queue)

    def send(self, wakeups: Iterable[Wakeup]) -> None:
        if not self.waiting:
            self._progress_at = time.monotonic()
        frames: list[bytes] = []
        for wakeup in wakeups:
            if wakeup.broker_queue not in self.declared and not self._has_queue(wakeup.broker_queue):
                continue
            self._sent += 1
            self.waiting[self._sent] = wakeup
            frames.append(self._template.frames(wakeup, self._sent))
        for at in range(0, len(frames), WAKEUPS_IN_A_WRITE):
            self._link.write(b"".join(frames[at : at + WAKEUPS_IN_A_WRITE]))

    def _has_queue(self, queue: str) -> bool:
        if time.monotonic() >= self._refused.get(queue, 0.0):
            self.declare([queue])
        return queue in self.declared

    def listen(self, waker: WakeSocket, seconds: float) -> None:
        """Read what the broker says, after waiting for it or for the waker at most so long."""
        if seconds and not self._link.has_read_ahead:
            gathering = bool(self.waiting) and not self.blocked
            poll = select.poll()
            poll.register(waker, select.POLLIN)
            if not gathering:
                poll.register(self._link.sock, select.POLLIN)
            poll.poll(1000 * (min(seconds, GATHER_SECONDS) if gathering else seconds))
        waker.clear()
        self._link.read_what_is_there()
        now = time.monotonic()
        if now - self._tick_at > TICK_SECONDS:
            self._tick_at = now
            self._link.heartbeat_tick()
        if self.waiting and not self.blocked and now - self._progress_at > SILENT_SECONDS:
            raise BrokerSilent(BrokerSilent.__doc__)

    def take_returned(self) -> list[Wakeup]:
        """Return, once each, wake-ups whose queue is gone, for another try after it was declared again."""
        returned, self._returned = self._returned, []
        return returned

    def _on_ack(self, number: int, multiple: bool) -> None:
        self.confirmed += self._settle(number, multiple)

    def _on_nack(self, number: int, multiple: bool) -> None:
        """Count it: the broker could not take the wake-up, and a heartbeat serves its run."""
        self.nacked += self._settle(number, multiple)

    def _settle(self, number: int, multiple: bool) -> int:
        self._progress_at = time.monotonic()
        waiting = self.waiting
        if not multiple:
            return waiting.pop(number, None) is not None
        settled = 0
        while self._oldest <= number:
            settled += waiting.pop(self._oldest, None) is not None
            self._oldest += 1
        return settled

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: amqp.Message) -> None:
        """Note that a queue is gone: the broker confirms a returned message all the same, so nothing else shows it."""
        self.declared.discard(routing_key)
        wakeup = self.waiting.get(self._template.number_of(message.properties["correlation_id"]))
        if wakeup is not None and wakeup.tries == 0:
            self._returned.append(wakeup._replace(tries=1))

    def _on_blocked(self, reason: str) -> None:
        logger.warning("%s takes nothing at present: %s", self.broker, reason)
        self.blocked = True

    def _on_unblocked(self) -> None:
        self.blocked = False
        self._progress_at = time.monotonic()
