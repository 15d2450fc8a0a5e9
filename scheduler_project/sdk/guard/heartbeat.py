"""The guard's conversation with the ledger: serial, numbered, and the clock of the fence."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from ..errors import LedgerRefused, LedgerUnavailable
from ..ledger import clock_skew
from ..ledger.interface import MAX_STOPPING, Beat, Ledger, WorkerInfo, WorkQueue
from ..process import processes
from ..shared.folder import Runtime
from ..shared.header import NIL
from ..shared.slot_record import CLAIMED
from .declare_at_start import StartDeclarations
from .held_claims import HeldClaims, held_claims, stopping_claims, tokens_to_list

logger = logging.getLogger(__name__)

# Pauses between beats, in seconds.
WHEN_WOKEN = 0.2
WITH_WORK = 0.5
# Without wake-ups children learn of work from the responses alone.
FEEDING = 0.1
AFTER_FAILURE = 1.0
AFTER_REFUSAL = 10.0
# What a worker registers of its configuration.
CONFIGURED = ("name", "pool", "host", "known_targets", "version", "region", "lease")


@dataclass
class LastResponse:
    """The claims and queues that the last response named; the guard's loop acts on them."""

    cancels: frozenset[UUID] = frozenset()
    terminates: frozenset[UUID] = frozenset()
    gone: frozenset[UUID] = frozenset()
    work_since: float = 0.0
    queues: dict[int, WorkQueue] = field(default_factory=dict)


class HeartbeatThread(threading.Thread):
    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        super().__init__(name="beatkeeper-heartbeat", daemon=True)
        self.last_response = LastResponse()
        # Set by the guard's loop and by a ledger that does not know us: register anew once nothing old is held.
        self.must_register = runtime.table.header.incarnation == NIL or runtime.table.header.fenced
        # Set by the guard's loop while the worker hangs: a silent worker is taken for lost.
        self.silent = False
        # No wake-ups come, and a feed of the guard's serves what the responses name, as soon as it is queued.
        self.feeding = False
        # The last response named claims that must not go on.
        self.instructed = threading.Event()
        self._runtime, self._ledger = runtime, ledger
        self._answered = -1
        self._woken = threading.Event()
        self._finished = False
        self._declarations = StartDeclarations(runtime.config, ledger)
        self._skew_ms: float | None = None

    def wake(self) -> None:
        self._woken.set()

    def finish(self) -> None:
        self._finished = True
        self._woken.set()

    def run(self) -> None:
        while not self._finished:
            began = time.monotonic()
            pause = self.send_next()
            if self._woken.wait(began + pause - time.monotonic()) and not self._finished:
                time.sleep(max(0.0, began + min(pause, WHEN_WOKEN) - time.monotonic()))
            # After the pause: what woke us in it is part of the next beat.
            self._woken.clear()

    def send_next(self) -> float:
        """Register or beat, whichever is next; return how many seconds to pause after it."""
        try:
            if self.silent:
                return WHEN_WOKEN
            if self.must_register:
                return self._register()
            pause = self._beat()
            self._declarations.step()
            return pause
        except LedgerUnavailable as error:
            logger.warning("The ledger does not answer: %s", error)
            return min(AFTER_FAILURE, self._runtime.config.beat)
        except LedgerRefused as refusal:
            logger.error("%s", refusal)
            return AFTER_REFUSAL
        except Exception:
            logger.exception("The heartbeat failed")
            return AFTER_FAILURE

    def _register(self) -> float:
        header, config = self._runtime.table.header, self._runtime.config
        # Close the fence first, then wait until no claim of the old incarnation is left. A child that read the old
        # incarnation before the fence closed finds another one when its claims arrive, and gives them back.
        header.fence_at, header.incarnation = 0.0, NIL
        if any(state in CLAIMED for state in self._runtime.table.states()):
            return WHEN_WOKEN
        incarnation, sent_at = uuid4(), processes.boottime()
        configured = {name: getattr(config, name) for name in CONFIGURED}
        slots = self._runtime.table.size
        info = WorkerInfo(incarnation=incarnation, pid=header.parent[0], slots=slots, **configured)
        queues = self._ledger.register(info)
        self._answered = 0
        self.last_response = LastResponse(queues={queue.id: queue for queue in queues})
        header.incarnation = incarnation
        self.must_register = False
        # Open the fence last: a child that finds it open finds the new incarnation beside it.
        self._renew_fence(sent_at)
        self._runtime.write_response(queues, [])
        logger.info("Worker %s is registered as %s", config.name, incarnation)
        return WHEN_WOKEN

    def _beat(self) -> float:
        table, config, last = self._runtime.table, self._runtime.config, self.last_response
        held = held_claims(self._runtime)
        table.header.beats += 1
        beat = Beat(
            incarnation=table.header.incarnation,
            number=table.header.beats,
            answered=self._answered,
            slots=table.size,
            busy=held.busy,
            foreign_busy=held.foreign,
            held=tokens_to_list(held.tokens, self._runtime.spool),
            draining=table.header.draining,
            queues_after=max(last.queues, default=0),
            feed_after=0.0 if self.feeding else config.feed_after,
            stopping=stopping_claims(table)[:MAX_STOPPING],
            skew_ms=self._skew_ms,
        )
        sent_at = processes.boottime()
        response = self._ledger.heartbeat(beat)
        if not response.known:
            logger.error("The ledger has expired worker %s: what runs is stopped", config.name)
            self.must_register = True
            return WHEN_WOKEN
        self._answered = beat.number
        self._renew_fence(sent_at)
        self._note_skew(response.skew_ms)
        last.queues.update({queue.id: queue for queue in response.queues})
        last.cancels = frozenset(response.cancels)
        last.terminates = frozenset(response.terminates)
        # A claim that was only requested when the beat was composed may have been made since: the ledger did not
        # know it then, and knows it now.
        last.gone = frozenset(response.gone) & held.made
        if last.gone or response.cancels or response.terminates:
            self.instructed.set()
        last.work_since = (last.work_since or sent_at) if response.work else 0.0
        self._runtime.write_response(last.queues.values(), response.work)
        return self._interval(bool(response.work), held)

    def _note_skew(self, skew_ms: float | None) -> None:
        """Keep the skew for the next beat, and log it when it begins to mislead."""
        if skew_ms is None:
            return
        was_far = abs(self._skew_ms or 0.0) > clock_skew.LIMIT_MS
        if abs(skew_ms) > clock_skew.LIMIT_MS and not was_far:
            logger.warning("This machine's clock is %s", clock_skew.describe(skew_ms))
        self._skew_ms = skew_ms

    def _renew_fence(self, sent_at: float) -> None:
        # From the moment at which the beat was sent: the ledger received it later, so its lease ends after our fence,
        # and no other worker gets a run that we still work on.
        config = self._runtime.config
        self._runtime.table.header.fence_at = sent_at + config.lease - config.margin

    def _interval(self, work: bool, held: HeldClaims) -> float:
        config = self._runtime.config
        has_room = held.busy + held.foreign < self._runtime.table.size
        if self.feeding and (work or held.busy):
            return FEEDING
        if work or (config.without_wakeups and has_room):
            return min(WITH_WORK, config.beat)
        return min(config.look, config.beat) if has_room else config.beat
