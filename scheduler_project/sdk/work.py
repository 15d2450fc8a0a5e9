"""A lane's work, run by run: take a slot, claim, execute, report, and again. Permits and the feed both end here.

1. The slot names the tokens before claims are asked for, so every heartbeat lists what may become ours.
2. After the answer, and again before each claim of a batch, the fence is read: our time may be over.
3. The results are told, or spooled for the guard; only then does the slot forget them. The next claims of the lane
   travel with them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from . import batches, processes
from .batches import Lengths, largest_batch
from .claim_details import details_of, short_end_of
from .execute import execute
from .hand import Hand
from .interrupts import Interrupts
from .ledger import (
    Claim,
    Ended,
    Lane,
    LedgerRefused,
    LedgerUnavailable,
    Told,
    Wanted,
    base_token,
    given_back,
)
from .retries import decide
from .runtime import Runtime
from .secret_box import hide_keys
from .slot_header import NOBODY
from .spool import Untold, unheard_now
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
    lengths: Lengths = field(default_factory=Lengths)

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

    def abandon_slot(self) -> None:
        if self.busy and self._hand is not None:
            self._hand.abandon()
        self._hand = None

    def watch(self) -> Watch:
        if self._watch is None or self._watch.pid != os.getpid():
            self._watch = Watch(self.runtime.table)
            if os.getpid() != self.runtime.table.parent[0]:
                # In the parent they stay: a SIGHUP makes it a new worker, by its environment.
                hide_keys()
        return self._watch


def work_on_lane(bench: Workbench, lane: Lane, seconds: float) -> int:
    """Runs until the lane is empty or the time is over, or one run where runs are counted. Returns how many; none
    also when no slot was free."""
    hand = bench.take_slot() if bench.may_claim() else None
    if hand is None:
        return 0
    if bench.runtime.config.counts_runs:
        seconds = 0.0
    until, done = time.monotonic() + seconds, 0
    try:
        with Interrupts(hand) as interrupts:
            first = want(bench, lane)
            claims = ask(bench, hand, first)
            wanted: Wanted | None = first
            while wanted is not None and claims:
                ends = carry_out(bench, hand, interrupts, wanted, claims)
                done += len(ends)
                goes_on = ends and bench.may_claim() and time.monotonic() < until
                wanted = want(bench, lane) if goes_on else None
                claims = tell(bench, hand, ends, wanted)
    except SystemExit:
        # This process ends. Then the slot is the guard's, who tells and gives back what is in it.
        raise
    except BaseException:
        # A full disk, for one. What is over and not told, and what waits, is the guard's now.
        bench.abandon_slot()
        raise
    bench.release_slot()
    if bench.runtime.config.counts_runs:
        bench.runtime.table.count_runs(done)
    return done


def want(bench: Workbench, lane: Lane) -> Wanted:
    table = bench.runtime.table
    most = 1 if bench.runtime.config.counts_runs else min(bench.lengths.most(lane), largest_batch(table.size))
    return Wanted(table.incarnation, base_token(), lane, bench.known(), most)


def ask(bench: Workbench, hand: Hand, wanted: Wanted, again: bool = False) -> list[Claim]:
    """Claims whose answer was lost are asked for again with their tokens, or they would lose against themselves."""
    hand.ask(wanted.token, wanted.most, wanted.incarnation)
    until = time.monotonic() + CLAIM_PATIENCE
    while bench.may_claim() or again:
        try:
            return bench.runtime.ledger().claim(wanted, again=again)
        except LedgerUnavailable as error:
            if time.monotonic() >= until or bench.runtime.table.fenced:
                logger.warning("The ledger does not answer (%s); a claim made unheard is given back", error)
                leave_to_guard(bench, wanted)
                return []
            again = True
            time.sleep(PAUSE)
        except LedgerRefused as refusal:
            logger.error("%s", refusal)
            if again:
                # The ask before may have been good; so may be the next one, with another key.
                leave_to_guard(bench, wanted)
            return []
    return []


def leave_to_guard(bench: Workbench, wanted: Wanted) -> None:
    bench.runtime.spool.put_unheard(unheard_now(wanted.incarnation, wanted.token, wanted.most))


def still_ours(bench: Workbench, claim: Claim) -> bool:
    return bench.may_claim() and bench.runtime.table.incarnation == claim.incarnation


def carry_out(
    bench: Workbench, hand: Hand, interrupts: Interrupts, wanted: Wanted, claims: Sequence[Claim]
) -> dict[int, Ended]:
    """One after the other; before each it is asked whether we still may, and whether the guard has taken it. When
    they take much longer than was to be expected the rest goes back.

    Returns what came of them, by their numbers in the batch. Each end is in shared memory before the next claim
    begins, so it is told even if we die.
    """
    spool, ends, until = bench.runtime.spool, {}, time.monotonic() + 2 * batches.BATCH_SECONDS
    hand.receive(wanted.token, [details_of(claim) for claim in claims])
    with bench.watch().over(hand):
        for done, claim in enumerate(claims):
            if not still_ours(bench, claim):
                spool.put(*map(Untold, claims[done:]))
                break
            nth, began = claim.token.int - wanted.token.int, time.monotonic()
            if began > until:
                ends[nth] = given_back(claim)
                continue
            deadline = processes.boottime() + claim.timeout
            if hand.begin(nth, claim.claim_seq, deadline, partial(spool.holds, claim.token)):
                ends[nth] = carried_out(bench, hand, interrupts, claim)
                if not hand.ended(nth, short_end_of(ends[nth].outcome, ends[nth].verdict)):
                    spool.put(Untold.of(ends[nth]))
                bench.lengths.note(wanted.lane, time.monotonic() - began)
    return ends


def carried_out(bench: Workbench, hand: Hand, interrupts: Interrupts, claim: Claim) -> Ended:
    runtime = bench.runtime
    outcome = execute(claim, hand, bench.targets, runtime.log_store, interrupts, runtime.config.name)
    return Ended(claim, outcome, decide(outcome, claim.attempt, claim.retry, losses=claim.losses))


def tell(bench: Workbench, hand: Hand, ends: Mapping[int, Ended], wanted: Wanted | None) -> list[Claim]:
    """What came of a batch, but for what the guard has taken of it and tells itself. Returns the next batch."""
    taken = hand.reporting(wanted.token, wanted.most, wanted.incarnation) if wanted else hand.reporting()
    ended = [one for nth, one in ends.items() if not taken >> nth & 1]
    told = heard(bench.runtime, ended, wanted)
    if told is None and wanted is not None:
        return ask(bench, hand, wanted, again=True)
    return told.claims if told else []


def heard(runtime: Runtime, ended: Sequence[Ended], wanted: Wanted | None) -> Told | None:
    """What the ledger says to it; None: it is told, or spooled for the guard, but not what is wanted."""
    until, asked = time.monotonic() + REPORT_PATIENCE, wanted
    while True:
        try:
            told = runtime.ledger().report(ended, asked)
        except LedgerUnavailable:
            asked = None
            if time.monotonic() >= until:
                runtime.spool.put(*map(Untold.of, ended))
                return None
            time.sleep(PAUSE)
        except Exception:
            refused(runtime, ended)
            return None
        else:
            for one, state in zip(ended, told.states, strict=True):
                clean_up(runtime, one, state)
            return told if asked is wanted else None


def refused(runtime: Runtime, ended: Sequence[Ended]) -> None:
    """One that the ledger chokes on must not cost the others of its batch their report."""
    if len(ended) > 1:
        for one in ended:
            heard(runtime, [one], None)
    else:
        logger.exception("The result of run %s was refused; the guard will try again", ended[0].claim.run_id)
        runtime.spool.put(*map(Untold.of, ended))


def clean_up(runtime: Runtime, one: Ended, state: str | None) -> None:
    if state is None:
        # The open log stays: it is all there is to read of this attempt.
        logger.warning("Run %s was no longer ours; its result changes nothing", one.claim.run_id)
    elif one.outcome.log is not None:
        runtime.log_store.discard(one.claim.run_id, one.claim.claim_seq)
