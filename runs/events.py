"""Report what happened, by name, to listeners.

Passes emit after their transaction has committed; services call `emit_on_commit`. A pass emits one event with counts or
ids, never one per run. The log is a listener; metrics and notifications add theirs in their app's `ready()`:

    events.listen(notify)

A listener runs in the thread that emits, the loops of the scheduler among them, so it returns at once: it queues what
takes longer. A listener that raises is logged and stops nobody.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import ClassVar, NamedTuple, dataclass_transform
from uuid import UUID

from django.db import transaction
from django.db.models import TextChoices

from jobs.validation.checks import visible

logger = logging.getLogger(__name__)


class EventName(TextChoices):
    RUN_CREATED = "run.created"
    RUN_QUEUED = "run.queued"
    RUN_BLOCKED = "run.blocked"
    RUN_RELEASED = "run.released"
    RUN_CANCELLED = "run.cancelled"
    RUN_LOST = "run.lost"
    RUN_CALLBACK_MISSED = "run.callback_missed"
    RUN_DEAD = "run.dead"
    RUN_ID_COLLIDED = "run.id_collided"
    QUEUE_HELD = "queue.held"
    JOB_UNRUNNABLE = "job.unrunnable"
    JOB_MISSED_TIMES_DROPPED = "job.missed_times_dropped"
    WORKER_HELD = "worker.held"
    WORKER_EXPIRED = "worker.expired"
    PARTITION_MISSING = "partition.missing"


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Event:
    """Make each kind of event a frozen dataclass, with its name and level."""

    name: ClassVar[EventName]
    level: ClassVar[int]

    def __init_subclass__(cls, name: EventName, level: int = logging.DEBUG) -> None:
        cls.name, cls.level = name, level
        dataclass(frozen=True, kw_only=True)(cls)

    def lines(self) -> Iterator[str]:
        """Yield the lines that the log shows."""
        fields = " ".join(f"{name}={value}" for name, value in vars(self).items())
        yield f"{self.name.value} {fields}".strip()


Listener = Callable[[Event], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Call the listener for every event of this process from now on, once however often it is added."""
    if listener not in _listeners:
        _listeners.append(listener)


def emit(*events: Event) -> bool:
    """Report events of a transaction that has committed, and return whether every listener accepted them."""
    accepted = True
    for event in events:
        for listener in tuple(_listeners):
            try:
                listener(event)
            except Exception:  # what one listener cannot do is no reason to end a pass
                logger.exception("a listener failed at %s", event.name.value)
                accepted = False
    return accepted


def emit_on_commit(*events: Event) -> None:
    """Report events once the Django transaction under way has committed; a rolled-back one reports nothing."""
    if events:
        transaction.on_commit(partial(emit, *events))


def log_event(event: Event) -> None:
    if logger.isEnabledFor(event.level):
        for line in event.lines():
            logger.log(event.level, "%s", visible(line))


class RunsCreated(Event, name=EventName.RUN_CREATED):
    """Runs of planned times, of missed ones (`catch_up`), or requested ones; `run_ids` of the requested alone."""

    trigger: str
    runs: int
    skipped: int = 0
    run_ids: Sequence[UUID] = ()


class RunsQueued(Event, name=EventName.RUN_QUEUED):
    pool_id: int
    runs: int


class RunsBlocked(Event, name=EventName.RUN_BLOCKED):
    """Runs that dispatch may not hand over, by reason."""

    pool_id: int
    reasons: Mapping[str, int]


class RunsReleased(Event, name=EventName.RUN_RELEASED):
    """Runs that became ready: their time came, a retry budget had room, or what blocked them is over."""

    promoted: int
    retried: int
    released: int


class RunsCancelled(Event, name=EventName.RUN_CANCELLED):
    """Runs that a request or an overlap policy ended, and those whose workers were requested to end them."""

    ended: Sequence[UUID]
    requested: Sequence[UUID]
    reason: str


class RunsLost(Event, name=EventName.RUN_LOST, level=logging.WARNING):
    """Runs whose attempt ended with their worker or its time limit, with the states they have now."""

    states: Mapping[UUID, str]
    line: str

    def lines(self) -> Iterator[str]:
        for run_id, state in self.states.items():
            yield f"run {run_id} lost its attempt and is {state}: {self.line}"


class CallbacksMissed(Event, name=EventName.RUN_CALLBACK_MISSED, level=logging.WARNING):
    states: Mapping[UUID, str]

    def lines(self) -> Iterator[str]:
        for run_id, state in self.states.items():
            yield f"run {run_id} got no callback in time and is {state}"


class DeadRun(NamedTuple):
    run_id: UUID
    tenant_id: int
    job_id: UUID
    died_at: datetime
    fingerprint: str
    error_class: str
    error_type: str
    error_line: str


class RunsDied(Event, name=EventName.RUN_DEAD, level=logging.INFO):
    """Runs that ended as dead, however they ended.

    Each is reported at least once: again if a listener raises, or the scheduler ends before it notes the report.
    """

    dead: Sequence[DeadRun]

    def lines(self) -> Iterator[str]:
        for one in self.dead:
            yield f"run {one.run_id} of job {one.job_id} is dead: {one.error_type or one.error_class}"


class RunIdCollided(Event, name=EventName.RUN_ID_COLLIDED, level=logging.ERROR):
    run_id: UUID
    job_id: UUID
    owner_id: UUID

    def lines(self) -> Iterator[str]:
        yield f"run id {self.run_id} of job {self.job_id} belongs to job {self.owner_id}"


class QueuesHeld(Event, name=EventName.QUEUE_HELD):
    """Queues with ready runs that cannot go any more, by tenant, with the reason."""

    pool_id: int
    reasons: Mapping[int, str]


class JobUnrunnable(Event, name=EventName.JOB_UNRUNNABLE, level=logging.ERROR):
    """A job became unrunnable: its next time cannot be reckoned, or the database refuses its run."""

    job_id: UUID
    reason: str

    def lines(self) -> Iterator[str]:
        yield f"job {self.job_id} is unrunnable: {self.reason}"


class MissedTimesDropped(Event, name=EventName.JOB_MISSED_TIMES_DROPPED, level=logging.ERROR):
    job_id: UUID
    reason: str

    def lines(self) -> Iterator[str]:
        yield f"missed times of job {self.job_id} get no run: {self.reason}"


class WorkersHeld(Event, name=EventName.WORKER_HELD, level=logging.CRITICAL):
    """So many workers fell silent at once that the network may be to blame; they keep their claims for a lease."""

    workers: Sequence[UUID]

    def lines(self) -> Iterator[str]:
        yield f"ALARM: {len(self.workers)} workers fell silent at once and are held for one more lease"


class ExpiredWorker(NamedTuple):
    incarnation: UUID
    worker_name: str
    pool_id: int


class WorkersExpired(Event, name=EventName.WORKER_EXPIRED, level=logging.WARNING):
    workers: Sequence[ExpiredWorker]

    def lines(self) -> Iterator[str]:
        for worker in self.workers:
            yield f"worker {worker.worker_name} of pool {worker.pool_id} is lost: no heartbeat for its lease"


class PartitionMissing(Event, name=EventName.PARTITION_MISSING, level=logging.CRITICAL):
    def lines(self) -> Iterator[str]:
        yield "ALARM: there is no partition for a planned time"
