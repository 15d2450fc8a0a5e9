"""The delivery of spooled results: report what lies in the spool until the ledger has it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from uuid import UUID

from ..errors import KeyRefused, LedgerUnavailable
from ..ledger.interface import CompletedClaim, Ledger, given_back
from ..shared.folder import Runtime, seal_log
from ..shared.spool import PendingReport, UnconfirmedClaim

logger = logging.getLogger(__name__)

INTERVAL = 0.5
# A refused result is tried again after so many seconds each, then set aside. A proxy before the platform, or a page
# that takes its place for a while, refuses for minutes, and not because of the result.
PAUSES_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 60.0)


@dataclass
class Refusals:
    """How often one result was refused, and until when it is not tried again."""

    count: int = 0
    silent_until: float = 0.0


class Delivery(threading.Thread):
    def __init__(self, runtime: Runtime, ledger: Ledger) -> None:
        super().__init__(name="beatkeeper-delivery", daemon=True)
        self._runtime, self._ledger = runtime, ledger
        self._woken = threading.Event()
        self._finished = False
        self._refusals: dict[UUID, Refusals] = {}

    def wake(self) -> None:
        self._woken.set()

    def finish(self) -> None:
        self._finished = True
        self._woken.set()

    def run(self) -> None:
        while not self._finished:
            self.deliver_all()
            self._woken.wait(INTERVAL)
            self._woken.clear()

    def deliver_all(self) -> bool:
        """Try to deliver everything; return whether the spool is empty now."""
        try:
            # Unconfirmed claims first: those that turn out to be made are spooled and delivered in the same pass.
            empty = True
            for unconfirmed in self._runtime.spool.unconfirmed():
                empty = self._confirm(unconfirmed) and empty
            for token in self._runtime.spool.tokens():
                empty = self._deliver(token) and empty
            return empty
        except Exception:
            # The thread goes on: nothing else delivers.
            logger.exception("The spool could not be delivered")
            return False

    def _confirm(self, unconfirmed: UnconfirmedClaim) -> bool:
        """Find out which of these claims were made and spool them to be given back untried.

        Returns True once no more of them can be made.
        """
        spool = self._runtime.spool
        try:
            made = self._ledger.claim(unconfirmed.request(), again=True)
        except (LedgerUnavailable, KeyRefused):
            return False
        except Exception:
            logger.exception("Unconfirmed claims cannot be requested; they go back by recovery")
            made = []
        else:
            if not made and unconfirmed.may_still_be_made:
                return False
        try:
            # Into the spool before the note is removed: a beat between the two lists the claims all the same.
            spool.put(*map(PendingReport, made))
        except OSError as error:
            logger.warning("Unconfirmed claims cannot be put into the spool: %s", error)
            return False
        spool.remove_unconfirmed(unconfirmed)
        return True

    def _deliver(self, token: UUID) -> bool:
        if token in self._refusals and time.monotonic() < self._refusals[token].silent_until:
            return False
        try:
            pending = self._runtime.spool.get(token)
            if pending is not None:
                self._report(pending)
        except (LedgerUnavailable, KeyRefused):
            # A key that was revoked too early may be made good; until then the result is kept.
            return False
        except Exception:
            return self._note_refusal(token)
        self._refusals.pop(token, None)
        self._runtime.spool.remove(token)
        return True

    def _report(self, pending: PendingReport) -> None:
        claim, outcome = pending.claim, pending.outcome
        if outcome is None or pending.verdict is None:
            completed = given_back(claim)
        else:
            if pending.log_is_open:
                outcome = replace(outcome, log=seal_log(self._runtime.log_store, claim))
            completed = CompletedClaim(claim, outcome, pending.verdict)
        if self._ledger.report([completed]).states == [None]:
            # The open log stays: it is all there is to read of this attempt.
            logger.warning("Run %s was no longer ours; its result changes nothing", claim.run_id)
            return
        self._runtime.log_store.discard(claim.run_id, claim.claim_seq)

    def _note_refusal(self, token: UUID) -> bool:
        """Postpone a refused result; set it aside after the last pause, and return True then."""
        refusals = self._refusals.setdefault(token, Refusals())
        logger.exception("A result was refused by the ledger (time %d)", refusals.count + 1)
        if refusals.count < len(PAUSES_SECONDS):
            refusals.silent_until = time.monotonic() + PAUSES_SECONDS[refusals.count]
            refusals.count += 1
            return False
        del self._refusals[token]
        logger.error("The result is set aside: %s", self._runtime.spool.set_aside(token))
        return True
