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

from . import processes
from .execute import execute
from .hand import Hand
from .interrupts import Interrupts
from .ledger import Claim, Ended, Lane, LedgerRefused, LedgerUnavailable, Told, Wanted, base_token, given_back
from .retries import decide
from .runtime import Runtime
from .secret_box import hide_keys
from .slot_header import NOBODY
from .spool import Letter, details_of, short_end_of
from .targets import Targets
from .watch import Watch

logger = logging.getLogger(__name__)

CLAIM_PATIENCE = 10.0
REPORT_PATIENCE = 2.0
PAUSE = 0.2
# A child claims as many runs at once as it carries out in so long.
BATCH_SECONDS = 0.1
MOST_AT_ONCE = 32
WEIGHT_OF_LAST = 0.2
MOST_LANES = 1000


class Lengths:
    """How long the runs of each lane have lately taken in this process, and so how many are claimed at once.

    One that took long counts at once, those that did not only bit by bit.
    """

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def most(self, lane: Lane) -> int:
        seconds = self._seconds.get((lane.pool_id, lane.tenant_id), BATCH_SECONDS)
        return max(1, min(MOST_AT_ONCE, int(BATCH_SECONDS / seconds)))

    def note(self, lane: Lane, seconds: float) -> None:
        key = (lane.pool_id, lane.tenant_id)
        before = self._seconds.pop(key, seconds)
        if len(self._seconds) >= MOST_LANES:
            self._seconds.clear()
        self._seconds[key] = max(seconds, before + (seconds - before) * WEIGHT_OF_LAST)


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

    def watch(self) -> Watch:
        if self._watch is None or self._watch.pid != os.getpid():
            self._watch = Watch(self.runtime.table)
            if os.getpid() != self.runtime.table.parent[0]:
                # In the parent they stay: a SIGHUP makes it a new worker, by its environment.
                hide_keys()
        return self._watch


def work_on_lane(bench: Workbench, lane: Lane, seconds: float) -> int:
    """Runs until the lane is empty or the time is over. Returns how many; none also when no slot was free."""
    hand = bench.take_slot() if bench.may_claim() else None
    if hand is None:
        return 0
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
        bench.release_slot()
        raise
    bench.release_slot()
    return done


def want(bench: Workbench, lane: Lane) -> Wanted:
    most = bench.lengths.most(lane)
    return Wanted(bench.runtime.table.incarnation, base_token(), lane, bench.known(), most)


def ask(bench: Workbench, hand: Hand, wanted: Wanted, again: bool = False) -> list[Claim]:
    """Claims whose answer was lost are asked for again with their tokens, or they would lose against themselves."""
    hand.ask(wanted.token, wanted.most)
    until = time.monotonic() + CLAIM_PATIENCE
    while bench.may_claim() or again:
        try:
            return bench.runtime.ledger().claim(wanted, again=again)
        except LedgerUnavailable as error:
            if time.monotonic() >= until or bench.runtime.table.fenced:
                logger.warning(
                    "The ledger does not answer (%s); a claim made unheard goes back by rescue", error
                )
                return []
            again = True
            time.sleep(PAUSE)
        except LedgerRefused as refusal:
            logger.error("%s", refusal)
            return []
    return []


def still_ours(bench: Workbench, claim: Claim) -> bool:
    return bench.may_claim() and bench.runtime.table.incarnation == claim.incarnation


def carry_out(
    bench: Workbench, hand: Hand, interrupts: Interrupts, wanted: Wanted, claims: Sequence[Claim]
) -> dict[int, Ended]:
    """One after the other; before each it is asked whether we still may, and whether the guard has taken it. When
    they take much longer than was to be expected the rest goes back.

    Returns what came of them, by their places in the batch. Each end is in shared memory before the next claim
    begins, so it is told even if we die.
    """
    spool, ends, until = bench.runtime.spool, {}, time.monotonic() + 2 * BATCH_SECONDS
    hand.receive(wanted.token, [details_of(claim) for claim in claims])
    with bench.watch().over(hand):
        for number, claim in enumerate(claims):
            if not still_ours(bench, claim):
                spool.put(*map(Letter, claims[number:]))
                break
            place, began = claim.token.int - wanted.token.int, time.monotonic()
            if began > until:
                ends[place] = given_back(claim)
                continue
            if hand.begin(place, claim.claim_seq, processes.boottime() + claim.timeout):
                ends[place] = carried_out(bench, hand, interrupts, claim)
                if not hand.ended(place, short_end_of(ends[place].outcome, ends[place].verdict)):
                    spool.put(Letter(**vars(ends[place])))
                bench.lengths.note(wanted.lane, time.monotonic() - began)
    return ends


def carried_out(bench: Workbench, hand: Hand, interrupts: Interrupts, claim: Claim) -> Ended:
    runtime = bench.runtime
    outcome = execute(claim, hand, bench.targets, runtime.log_store, interrupts, runtime.config.name)
    return Ended(claim, outcome, decide(outcome, claim.attempt, claim.retry, losses=claim.losses))


def tell(bench: Workbench, hand: Hand, ends: Mapping[int, Ended], wanted: Wanted | None) -> list[Claim]:
    """What came of a batch, but for what the guard has taken of it and tells itself. Returns the next batch."""
    taken = hand.reporting(wanted.token, wanted.most) if wanted else hand.reporting()
    ended = [one for place, one in ends.items() if not taken >> place & 1]
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
                runtime.spool.put(*(Letter(**vars(one)) for one in ended))
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
        runtime.spool.put(*(Letter(**vars(one)) for one in ended))


def clean_up(runtime: Runtime, one: Ended, state: str | None) -> None:
    if state is None:
        # The open log stays: it is all there is to read of this attempt.
        logger.warning("Run %s was no longer ours; its result changes nothing", one.claim.run_id)
    elif one.outcome.log is not None:
        runtime.log_store.discard(one.claim.run_id, one.claim.claim_seq)
