"""The guard's conversation with the ledger: serial, numbered, and the clock of the fence.

The fence is set from the moment an answered beat was *sent*: the ledger heard it later, so its lease ends later.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from . import clock_skew, processes
from .ledger import (
    MOST_HELD,
    MOST_STOPPING,
    Beat,
    Lane,
    Ledger,
    LedgerRefused,
    LedgerUnavailable,
    WorkerInfo,
)
from .links import open_link
from .outcomes import CANCELLED
from .plan import plan, summary
from .runtime import Runtime
from .slot_header import NOBODY
from .slots import CLAIMED, FOREIGN, HELD, NOT_KILLED, SlotTable
from .spool import Spool

logger = logging.getLogger(__name__)

HURRIED = 0.2
WITH_WORK = 0.5
# Without permits the answers are all that children hear of work.
FEEDING = 0.1
AFTER_FAILURE = 1.0
AFTER_REFUSAL = 10.0
REFUSALS_AFTER = 20.0
PLAN_SECONDS = 5.0


@dataclass(frozen=True)
class InHand:
    """What the slots and the spool hold at one moment."""

    tokens: frozenset[UUID] = frozenset()
    # Of them those whose claims were made for certain.
    made: frozenset[UUID] = frozenset()
    busy: int = 0
    foreign: int = 0


@dataclass
class Heard:
    """What the last answer said about claims; the guard's loop acts on it."""

    cancels: frozenset[UUID] = frozenset()
    terminates: frozenset[UUID] = frozenset()
    gone: frozenset[UUID] = frozenset()
    work_since: float = 0.0
    lanes: dict[int, Lane] = field(default_factory=dict)


def in_hand(runtime: Runtime) -> InHand:
    """Slots first, what was unheard after, the spool last: so claims move, and each is in at least one."""
    tokens, made, busy, foreign = set(), set(), 0, 0
    for index in range(runtime.table.size):
        slot = runtime.table.read(index)
        if slot is None:
            # Its writer stopped half way: what stands there now is the best there is.
            tokens.update(runtime.table.raw(index).tokens())
            busy += 1
        elif slot.state in CLAIMED:
            busy += 1
            tokens.update(slot.tokens())
            if slot.state == HELD:
                made.update(slot.tokens())
        elif slot.state == FOREIGN:
            foreign += 1
    tokens.update(*(one.tokens for one in runtime.spool.unheard()))
    tokens.update(runtime.spool.tokens())
    return InHand(frozenset(tokens - {NOBODY}), frozenset(made), busy, foreign)


def listed(tokens: frozenset[UUID], spool: Spool) -> list[UUID]:
    """As many as a beat may name: what slots hold, always; of what waits in the spool the lowest tokens, and others
    when those are delivered."""
    spooled = tokens & set(spool.tokens()) if len(tokens) > MOST_HELD else frozenset[UUID]()
    held = sorted(tokens - spooled)
    return held + sorted(spooled)[: max(0, MOST_HELD - len(held))]


def stopping(table: SlotTable) -> list[UUID]:
    """Claims whose body has been asked to stop because somebody wants the run cancelled."""
    found = []
    for index, state in enumerate(table.states()):
        request = table.kill_request(index)
        slot = table.read(index) if state == HELD and request.reason == CANCELLED else None
        if slot is not None and slot.token == request.token and request.stage != NOT_KILLED:
            found.append(slot.token)
    return found


class Heartbeat(threading.Thread):
    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        super().__init__(name="beatkeeper-heartbeat", daemon=True)
        self.heard = Heard()
        # Asked for by the loop, obeyed here: begin anew once nothing old is in hand.
        self.begin_anew = runtime.table.incarnation == NOBODY or runtime.table.fenced
        self.suspended = False
        # No permits come, and a feed of the guard's serves what the answers name, as soon as it is queued.
        self.feeding = False
        # Claims were named that must not go on.
        self.news = threading.Event()
        self._runtime, self._ledger = runtime, ledger
        self._answered = -1
        self._wake = threading.Condition()
        self._hurry = self._finished = False
        self._declared = False
        # Before anything is declared, in a thread of its own: a beat waits for nobody.
        self._comparing: threading.Thread | None = None
        self._look_for_refusals_at = 0.0
        self._skew_ms: float | None = None

    def hurry(self) -> None:
        with self._wake:
            self._hurry = True
            self._wake.notify()

    def finish(self) -> None:
        with self._wake:
            self._finished = True
            self._wake.notify()

    def run(self) -> None:
        while not self._finished:
            began = time.monotonic()
            pause = self.say()
            self._rest(began, pause)

    def _rest(self, began: float, pause: float) -> None:
        with self._wake:
            while not self._finished:
                since = time.monotonic() - began
                wanted = min(pause, HURRIED) if self._hurry else pause
                if since >= wanted:
                    break
                self._wake.wait(wanted - since)
            self._hurry = False

    def say(self) -> float:
        """One thing to say; returns how long to be silent after it."""
        try:
            if self.suspended:
                return HURRIED
            if self.begin_anew:
                return self._register()
            pause = self._beat()
            self._declare()
            self._tell_refusals()
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
        table, config = self._runtime.table, self._runtime.config
        # First nobody may claim for the old incarnation, then nobody has: a child that slipped in between
        # finds another incarnation than it asked for, and gives the run back.
        table.fence_at, table.incarnation = 0.0, NOBODY
        if any(state in CLAIMED for state in table.states()):
            return HURRIED
        incarnation, sent_at = uuid4(), processes.boottime()
        lanes = self._ledger.register(
            WorkerInfo(
                incarnation=incarnation,
                name=config.name,
                pool=config.pool,
                host=config.host,
                pid=table.parent[0],
                slots=table.size,
                known_targets=config.known_targets,
                version=config.version,
                region=config.region,
                lease=config.lease,
            )
        )
        self._answered = 0
        self.heard = Heard(lanes={lane.id: lane for lane in lanes})
        table.incarnation = incarnation
        self.begin_anew = False
        self._heard_at(sent_at)
        self._runtime.write_answer(lanes, [])
        logger.info("Worker %s is known as %s", config.name, incarnation)
        return HURRIED

    def _declare(self) -> None:
        config = self._runtime.config
        if self._declared or not config.declarations:
            return
        if self._comparing is None:
            self._comparing = threading.Thread(target=self._tell_plan, daemon=True)
            self._comparing.start()
        if self._comparing.is_alive():
            return
        try:
            self._ledger.declare(config.pool, config.tenant, config.declarations)
            self._look_for_refusals_at = time.monotonic() + REFUSALS_AFTER
        except LedgerRefused as refusal:
            logger.error("The declared jobs were refused: %s", refusal)
        self._declared = True

    def _tell_plan(self) -> None:
        """What declaring will change, and what differs that it will not: in the log, and in nobody's way."""
        config = self._runtime.config
        try:
            link = open_link(config.ledger_url, config.tenant, config.pool, PLAN_SECONDS)
            source = str(config.declarations[0].get("source", ""))
            changes = plan(config.declarations, link.declared(), pool=config.pool, source=source)
        except Exception as error:
            logger.debug("The declared jobs cannot be compared: %s", error)
            return
        told = [line for change in changes if change.tells for line in change.lines()]
        logger.info("Declared jobs: %s", "\n".join([summary(changes), *told]))

    def _tell_refusals(self) -> None:
        """The platform has had time to look at the declared jobs: what it did not take is said once."""
        if not self._look_for_refusals_at or time.monotonic() < self._look_for_refusals_at:
            return
        self._look_for_refusals_at = 0.0
        config = self._runtime.config
        names = [str(declared["name"]) for declared in config.declarations]
        for name, error in self._ledger.declaration_errors(config.tenant, names).items():
            logger.error("The declared job %s was refused: %s", name, error)

    def _beat(self) -> float:
        runtime, table, config = self._runtime, self._runtime.table, self._runtime.config
        now_in_hand = in_hand(runtime)
        beat = Beat(
            incarnation=table.incarnation,
            number=table.next_beat(),
            answered=self._answered,
            slots=table.size,
            busy=now_in_hand.busy,
            foreign_busy=now_in_hand.foreign,
            held=listed(now_in_hand.tokens, self._runtime.spool),
            draining=table.draining,
            lanes_after=max(self.heard.lanes, default=0),
            feed_after=0.0 if self.feeding else config.feed_after,
            stopping=stopping(table)[:MOST_STOPPING],
            skew_ms=self._skew_ms,
        )
        sent_at = processes.boottime()
        answer = self._ledger.heartbeat(beat)
        if not answer.known:
            logger.error("The ledger holds worker %s for lost: what runs is stopped", config.name)
            self.begin_anew = True
            return HURRIED
        self._answered = beat.number
        self._heard_at(sent_at)
        self._notice_skew(answer.skew_ms)
        self.heard.lanes.update({lane.id: lane for lane in answer.lanes})
        self.heard.cancels = frozenset(answer.cancels)
        self.heard.terminates = frozenset(answer.terminates)
        # A claim that was only asked for when the beat was composed may have been made since.
        self.heard.gone = frozenset(answer.gone) & now_in_hand.made
        if self.heard.gone or answer.cancels or answer.terminates:
            self.news.set()
        self.heard.work_since = (self.heard.work_since or sent_at) if answer.work else 0.0
        runtime.write_answer(self.heard.lanes.values(), answer.work)
        return self._interval(bool(answer.work), now_in_hand)

    def _notice_skew(self, skew_ms: float | None) -> None:
        """Told by the next beat, and in the log when it begins to mislead."""
        if skew_ms is None:
            return
        was_far = abs(self._skew_ms or 0.0) > clock_skew.LIMIT_MS
        if abs(skew_ms) > clock_skew.LIMIT_MS and not was_far:
            logger.warning("This machine's clock is %s", clock_skew.in_words(skew_ms))
        self._skew_ms = skew_ms

    def _heard_at(self, sent_at: float) -> None:
        config = self._runtime.config
        self._runtime.table.fence_at = sent_at + config.lease - config.margin

    def _interval(self, work: bool, now: InHand) -> float:
        config = self._runtime.config
        has_room = now.busy + now.foreign < self._runtime.table.size
        if self.feeding and (work or now.busy):
            return FEEDING
        if work or (config.without_permits and has_room):
            return min(WITH_WORK, config.beat)
        return min(config.look, config.beat) if has_room else config.beat
