"""Tells the ledger what lies in the spool, until it has been heard."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from dataclasses import replace
from uuid import UUID

from .errors import KeyRefused
from .ledger import Ended, Ledger, LedgerUnavailable, given_back
from .outcomes import Outcome
from .runtime import Runtime
from .spool import Letter

logger = logging.getLogger(__name__)

INTERVAL = 0.5
REFUSALS = 5


class Delivery(threading.Thread):
    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        super().__init__(name="beatkeeper-delivery", daemon=True)
        self._runtime, self._ledger = runtime, ledger
        self._wake = threading.Event()
        self._finished = False
        self._refusals: Counter[UUID] = Counter()

    def hurry(self) -> None:
        self._wake.set()

    def finish(self) -> None:
        self._finished = True
        self._wake.set()

    def run(self) -> None:
        while not self._finished:
            self.deliver_all()
            self._wake.wait(INTERVAL)
            self._wake.clear()

    def deliver_all(self) -> bool:
        """True: the spool is empty now."""
        empty = True
        for token in self._runtime.spool.tokens():
            empty = self._deliver(token) and empty
        return empty

    def _deliver(self, token: UUID) -> bool:
        try:
            letter = self._runtime.spool.get(token)
            if letter is not None:
                self._tell(letter)
        except (LedgerUnavailable, KeyRefused):
            # A key that was revoked too early may be made good; until then the result is kept.
            return False
        except Exception:
            return self._refused(token)
        self._runtime.spool.remove(token)
        return True

    def _tell(self, letter: Letter) -> None:
        claim = letter.claim
        if letter.outcome is None or letter.verdict is None:
            ended = given_back(claim)
        else:
            ended = Ended(claim, self._with_log(letter, letter.outcome), letter.verdict)
        if self._ledger.report([ended]).states == [None]:
            # The open log stays: it is all there is to read of this attempt.
            logger.warning("Run %s was no longer ours; its result changes nothing", claim.run_id)
            return
        self._runtime.log_store.discard(claim.run_id, claim.claim_seq)

    def _with_log(self, letter: Letter, outcome: Outcome) -> Outcome:
        if not letter.log_is_open:
            return outcome
        claim = letter.claim
        try:
            pointer = self._runtime.log_store.seal(
                claim.run_id, claim.claim_seq, claim.tenant, claim.incarnation
            )
        except OSError:
            logger.exception("The log of run %s cannot be stored", claim.run_id)
            return outcome
        return replace(outcome, log=pointer)

    def _refused(self, token: UUID) -> bool:
        self._refusals[token] += 1
        logger.exception("A result was refused by the ledger (time %d)", self._refusals[token])
        if self._refusals[token] < REFUSALS:
            return False
        self._runtime.spool.set_aside(token)
        return True
