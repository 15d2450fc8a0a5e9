"""Tells the ledger what lies in the spool, until it has been heard."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from uuid import UUID

from .errors import KeyRefused
from .ledger import Ended, Ledger, LedgerUnavailable, given_back
from .outcomes import Outcome
from .runtime import Runtime
from .spool import Unheard, Untold

logger = logging.getLogger(__name__)

INTERVAL = 0.5
# What is refused is tried again after so many seconds each, then set aside. What stands before the platform, or takes
# its place for a while, says no for minutes, and means itself.
PAUSES_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0)


@dataclass
class Refusals:
    """Of one result."""

    count: int = 0
    silent_until: float = 0.0


class Delivery(threading.Thread):
    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        super().__init__(name="beatkeeper-delivery", daemon=True)
        self._runtime, self._ledger = runtime, ledger
        self._wake = threading.Event()
        self._finished = False
        self._refusals: dict[UUID, Refusals] = {}

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
        """True: the spool is empty now. What goes wrong is tried again: nobody else would deliver anything."""
        try:
            return self._deliver_all()
        except Exception:
            logger.exception("A look at the spool failed")
            return False

    def _deliver_all(self) -> bool:
        empty = True
        for unheard in self._runtime.spool.unheard():
            empty = self._look_for(unheard) and empty
        for token in self._runtime.spool.tokens():
            empty = self._deliver(token) and empty
        return empty

    def _look_for(self, unheard: Unheard) -> bool:
        """What was made of it goes back untried, as if it had been heard. True: no more of it will be made."""
        spool = self._runtime.spool
        try:
            made = self._ledger.claim(unheard.wanted(), again=True)
        except (LedgerUnavailable, KeyRefused):
            return False
        except Exception:
            logger.exception("Claims made unheard cannot be asked for; they go back by rescue")
            made = []
        else:
            if not made and unheard.may_come:
                return False
        try:
            spool.put(*map(Untold, made))
        except OSError as error:
            logger.warning("Claims made unheard cannot be put into the spool: %s", error)
            return False
        spool.remove_unheard(unheard)
        return True

    def _deliver(self, token: UUID) -> bool:
        if token in self._refusals and time.monotonic() < self._refusals[token].silent_until:
            return False
        try:
            untold = self._runtime.spool.get(token)
            if untold is not None:
                self._tell(untold)
        except (LedgerUnavailable, KeyRefused):
            # A key that was revoked too early may be made good; until then the result is kept.
            return False
        except Exception:
            return self._refused(token)
        self._refusals.pop(token, None)
        self._runtime.spool.remove(token)
        return True

    def _tell(self, untold: Untold) -> None:
        claim = untold.claim
        if untold.outcome is None or untold.verdict is None:
            ended = given_back(claim)
        else:
            ended = Ended(claim, self._with_log(untold, untold.outcome), untold.verdict)
        if self._ledger.report([ended]).states == [None]:
            # The open log stays: it is all there is to read of this attempt.
            logger.warning("Run %s was no longer ours; its result changes nothing", claim.run_id)
            return
        self._runtime.log_store.discard(claim.run_id, claim.claim_seq)

    def _with_log(self, untold: Untold, outcome: Outcome) -> Outcome:
        if not untold.log_is_open:
            return outcome
        claim = untold.claim
        try:
            pointer = self._runtime.log_store.seal(
                claim.run_id, claim.claim_seq, claim.tenant, claim.incarnation
            )
        except OSError:
            logger.exception("The log of run %s cannot be stored", claim.run_id)
            return outcome
        return replace(outcome, log=pointer)

    def _refused(self, token: UUID) -> bool:
        refusals = self._refusals.setdefault(token, Refusals())
        logger.exception("A result was refused by the ledger (time %d)", refusals.count + 1)
        if refusals.count < len(PAUSES_SECONDS):
            refusals.silent_until = time.monotonic() + PAUSES_SECONDS[refusals.count]
            refusals.count += 1
            return False
        del self._refusals[token]
        logger.error("The result is set aside: %s", self._runtime.spool.set_aside(token))
        return True
