"""The guard's conversation with the ledger: serial, numbered, and the clock of the fence.

The fence never lies behind the end of the lease that the ledger may hold, less the margin. Before a beat is sent the
fence is lowered to what the beat announces, and raised by its answer alone:

- A busy worker's beat follows an idle one, and its answer is lost: the ledger may hold the shorter lease already, and
  the fence is there already.
- An idle worker's beat gets no answer: the ledger may still hold the shorter lease, and the fence has not moved.
- The answer comes late: the lease began after the beat was sent, and the fence is reckoned from then.
- A beat without an answer arrives after a later one: the ledger refuses it by its number.
- The worker was expired: its fence closes, and a new incarnation begins with the shorter lease.
- The guard is killed at any point: the next one finds fence and number in shared memory and begins with the shorter
  lease.
"""

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
from ..shared.slot_record import CLAIMED, FOREIGN
from .declare_at_start import StartDeclarations
from .held_claims import held_claims, stopping_claims, tokens_to_list
from .pace import WHEN_WOKEN, Pace

logger = logging.getLogger(__name__)

# Seconds.
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
        self.pace = Pace(runtime.config)
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

    def end_quiet(self) -> None:
        """Beat at once if the worker is quiet and no longer idle."""
        states = self._runtime.table.states()
        is_still = states.count(FOREIGN) == self.pace.foreign and not any(
            state in CLAIMED for state in states
        )
        if self.pace.quiet and not (is_still and self.hears_wakeups):
            self.wake()

    @property
    def hears_wakeups(self) -> bool:
        """Whether wake-ups reach the worker, and it may act on them."""
        header = self._runtime.table.header
        return header.hears_wakeups and not header.draining and not header.fenced and not self.feeding

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
        self.pace = Pace(config)
        # Open the fence last: a child that finds it open finds the new incarnation beside it.
        header.fence_at = self._fence(sent_at, config.lease)
        self._runtime.write_response(queues, [])
        logger.info("Worker %s is registered as %s", config.name, incarnation)
        return WHEN_WOKEN

    def _beat(self) -> float:
        table, config, last = self._runtime.table, self._runtime.config, self.last_response
        held = held_claims(self._runtime)
        self.pace.begin(held, self.hears_wakeups)
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
            lease=self.pace.lease,
            idle=self.pace.idle,
        )
        sent_at = processes.boottime()
        # Before the beat: it may arrive, and its answer be lost.
        table.header.fence_at = min(table.header.fence_at, self._fence(sent_at, self.pace.lease))
        response = self._ledger.heartbeat(beat)
        if not response.known:
            logger.error("The ledger has expired worker %s: what runs is stopped", config.name)
            self.must_register = True
            return WHEN_WOKEN
        self._answered = beat.number
        table.header.fence_at = self._fence(sent_at, self.pace.confirmed_lease(response))
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
        return self.pace.pause_after(response, held, self.feeding)

    def _note_skew(self, skew_ms: float | None) -> None:
        """Keep the skew for the next beat, and log it when it begins to mislead."""
        if skew_ms is None:
            return
        was_far = abs(self._skew_ms or 0.0) > clock_skew.LIMIT_MS
        if abs(skew_ms) > clock_skew.LIMIT_MS and not was_far:
            logger.warning("This machine's clock is %s", clock_skew.describe(skew_ms))
        self._skew_ms = skew_ms

    def _fence(self, sent_at: float, lease: float) -> float:
        # From the moment at which the beat was sent: the ledger received it later, so its lease ends after our fence,
        # and no other worker gets a run that we still work on.
        return sent_at + lease - self._runtime.config.margin
