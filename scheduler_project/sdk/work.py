"""A lane's work, run by run: take a slot, claim, execute, report, and again. Permits and the feed both end here.

1. The slot names a token before the claim is asked for, so every heartbeat lists what may become ours.
2. After the answer the fence is read again: an answer may come when our time is over.
3. The result is told, or spooled for the guard; only then is the slot emptied.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field

from . import processes
from .execute import execute
from .hand import Hand
from .interrupts import Interrupts
from .ledger import Claim, Ended, Lane, LedgerUnavailable, Wanted, base_token
from .outcomes import Outcome
from .retries import Verdict, decide
from .runtime import Runtime
from .slots import NOBODY
from .secret_box import hide_keys
from .spool import Letter, details_of
from .targets import Targets
from .watch import Watch

logger = logging.getLogger(__name__)

CLAIM_PATIENCE = 10.0
REPORT_PATIENCE = 2.0
PAUSE = 0.2


@dataclass
class Workbench:
    """What one process needs to work: one slot at a time."""

    runtime: Runtime
    targets: Targets
    _hand: Hand | None = None
    _pid: int = 0
    _known: list[str] = field(default_factory=list)
    _watch: Watch | None = None

    @property
    def busy(self) -> bool:
        return self._hand is not None and self._pid == os.getpid()

    def known(self) -> list[str]:
        if not self._known:
            self._known = self.targets.known()
        return self._known

    def may_claim(self) -> bool:
        table = self.runtime.table
        return not table.draining and not table.fenced and table.incarnation != NOBODY

    @property
    def hand(self) -> Hand | None:
        return self._hand if self.busy else None

    def take_slot(self) -> Hand | None:
        if self.busy:
            return None
        self._hand, self._pid = Hand.take(self.runtime.table), os.getpid()
        return self._hand

    def release_slot(self) -> None:
        if self.busy and self._hand is not None:
            self._hand.release()
        self._hand = None

    def watch(self) -> Watch:
        if self._watch is None or self._watch.pid != os.getpid():
            self._watch = Watch(self.runtime.table)
        return self._watch


def work_on_lane(bench: Workbench, lane: Lane, seconds: float) -> int:
    """Runs until the lane is empty or the time is over. Returns how many; none also when no slot was free."""
    hand = bench.take_slot() if bench.may_claim() else None
    if hand is None:
        return 0
    until, done = time.monotonic() + seconds, 0
    try:
        while bench.may_claim() and run_next(bench, hand, lane):
            done += 1
            if time.monotonic() >= until:
                break
    finally:
        bench.release_slot()
    return done


def run_next(bench: Workbench, hand: Hand, lane: Lane) -> bool:
    claim = ask(bench, hand, lane)
    if claim is None:
        hand.empty()
        return False
    if not still_ours(bench, claim):
        bench.runtime.spool.put(Letter(claim))
        hand.empty()
        return False
            if os.getpid() != self.runtime.table.parent[0]:
                # In the parent they stay: a SIGHUP makes it a new worker, by its environment.
                hide_keys()
    carry_out(bench, hand, claim)
    return True


def ask(bench: Workbench, hand: Hand, lane: Lane) -> Claim | None:
    """A claim whose answer was lost is asked for again with its token, or it would lose against itself."""
    wanted = Wanted(bench.runtime.table.incarnation, base_token(), lane, bench.known())
    hand.ask(wanted.token)
    until, again = time.monotonic() + CLAIM_PATIENCE, False
    while bench.may_claim() or again:
        try:
            claims = bench.runtime.ledger().claim(wanted, again=again)
            return claims[0] if claims else None
        except LedgerUnavailable as error:
            if time.monotonic() >= until or bench.runtime.table.fenced:
                logger.warning(
                    "The ledger does not answer (%s); a claim made unheard goes back by rescue", error
                )
                return None
            again = True
            time.sleep(PAUSE)
    return None


def still_ours(bench: Workbench, claim: Claim) -> bool:
    return bench.may_claim() and bench.runtime.table.incarnation == claim.incarnation


def carry_out(bench: Workbench, hand: Hand, claim: Claim) -> None:
    runtime = bench.runtime
    with Interrupts(hand) as interrupts:
        hand.hold(claim.claim_seq, processes.boottime() + claim.timeout, details_of(claim))
        with bench.watch().over(hand):
            outcome = execute(claim, hand, bench.targets, runtime.log_store, interrupts, runtime.config.name)
            hand.reporting()
    tell(runtime, claim, outcome, decide(outcome, claim.attempt, claim.retry))
    hand.empty()


def tell(runtime: Runtime, claim: Claim, outcome: Outcome, verdict: Verdict) -> None:
    if not told(runtime, claim, outcome, verdict):
        runtime.spool.put(Letter(claim, outcome, verdict))


def told(runtime: Runtime, claim: Claim, outcome: Outcome, verdict: Verdict) -> bool:
    until = time.monotonic() + REPORT_PATIENCE
    while True:
        try:
            [state] = runtime.ledger().report([Ended(claim, outcome, verdict)]).states
        except LedgerUnavailable:
            if time.monotonic() >= until:
                return False
            time.sleep(PAUSE)
        except Exception:
            logger.exception("The result of run %s was refused; the guard will try again", claim.run_id)
            return False
        else:
            if state is None:
                # The open log stays: it is all there is to read of this attempt.
                logger.warning("Run %s was no longer ours; its result changes nothing", claim.run_id)
            else:
                runtime.log_store.discard(claim.run_id, claim.claim_seq)
            return True
