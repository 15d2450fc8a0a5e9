"""The claim loop of one process: take a slot, claim, execute, report, and again. Wake-ups and the feed both run it.

1. The slot names the tokens before claims are requested, so every heartbeat lists what may become ours.
2. After the response, and again before each claim of a batch, the fence is read: our time may be over.
3. The results are reported, or spooled for the guard; only then does the slot forget them. The next claims
   are requested with the report.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..errors import LedgerRefused, LedgerUnavailable
from ..ledger.interface import (
    ALL_TENANTS,
    Claim,
    ClaimRequest,
    CompletedClaim,
    WorkQueue,
    base_token,
    given_back,
)
from ..process import processes
from ..retries import verdict_on
from ..secret_values.encryption import hide_keys
from ..shared.claim_record import pack_claim, pack_completion_for_slot
from ..shared.folder import Runtime
from ..shared.header import NIL
from ..shared.owned_slot import OwnedSlot
from ..shared.spool import PendingReport, unconfirmed_claim
from ..targets.registry import Targets
from . import batching
from .attempt import execute
from .batching import max_batch
from .interrupts import Interrupts
from .reporting import report
from .watchdog import Watchdog

logger = logging.getLogger(__name__)

CLAIM_PATIENCE = 10.0
PAUSE = 0.2
# Wake-ups wait a second for a slot: after a shorter batch, those of what was queued meanwhile still wait.
SHORT_BATCH = 0.5


class ClaimLoop:
    """Executes runs in this process, in one slot at a time. A fork starts without a slot and without a watchdog."""

    def __init__(self, runtime: Runtime, targets: Targets) -> None:
        self.runtime, self.targets = runtime, targets
        self._owned_slot: OwnedSlot | None = None
        self._pid = 0
        self._known: list[str] = []
        self._watchdog: Watchdog | None = None

    @property
    def owned_slot(self) -> OwnedSlot | None:
        return self._owned_slot if self._pid == os.getpid() else None

    def may_claim(self) -> bool:
        header = self.runtime.table.header
        return not header.draining and not header.fenced and header.incarnation != NIL

    def take_slot(self) -> OwnedSlot | None:
        # Locks belong to the process: a second slot taken within it would be the first one again.
        if self.owned_slot is not None:
            return None
        self._owned_slot, self._pid = OwnedSlot.take(self.runtime.table), os.getpid()
        return self._owned_slot

    def work_on_queue(self, queue: WorkQueue, seconds: float) -> int:
        """Execute runs until nothing is queued or the time is over, or one run where runs are counted.

        The queue is known to have work; the others of its pool are served too. Returns how many runs it executed; none
        also when no slot was free.
        """
        owned_slot = self.take_slot() if self.may_claim() else None
        if owned_slot is None:
            return 0
        counts_runs = self.runtime.config.counts_runs
        until, done = time.monotonic() + (0.0 if counts_runs else seconds), 0
        try:
            with Interrupts(owned_slot) as interrupts:
                request: ClaimRequest | None = self.next_request(queue)
                claims = self._claim(owned_slot, request) if request else []
                while request is not None and claims:
                    began = time.monotonic()
                    completed = self._execute_batch(owned_slot, interrupts, request, claims)
                    done, ended = done + len(completed), time.monotonic()
                    none_left = claims[0].none_left and ended - began < SHORT_BATCH
                    goes_on = completed and not none_left and self.may_claim() and ended < until
                    request = self.next_request(queue) if goes_on else None
                    claims = self._report(owned_slot, completed, request)
        except SystemExit:
            # This process ends. Then the slot is the guard's, which reports and gives back what is in it.
            raise
        except BaseException:
            # A full disk, for one. Results that are not reported, and claims that wait, are the guard's now.
            owned_slot.abandon()
            self._owned_slot = None
            raise
        owned_slot.release()
        self._owned_slot = None
        if counts_runs:
            self.runtime.table.header.runs_counted += done
        return done

    def next_request(self, queue: WorkQueue) -> ClaimRequest:
        table, counts_runs = self.runtime.table, self.runtime.config.counts_runs
        self._known = self._known or self.targets.known()
        all_queues = replace(queue, tenant_id=ALL_TENANTS)
        short = self.runtime.lengths.below(batching.BATCH_SECONDS)
        # The ledger looks at the length of each; this bounds what one of an earlier version gives.
        fitting = int(1000 * batching.BATCH_SECONDS) // min(short.values()) if short else 1
        most = 1 if counts_runs else max(1, min(max_batch(table.size), fitting))
        return ClaimRequest(table.header.incarnation, base_token(), all_queues, self._known, most, short)

    def _claim(self, owned_slot: OwnedSlot, request: ClaimRequest, again: bool = False) -> list[Claim]:
        """Request claims; after a lost response request them again by their tokens.

        With other tokens the runs would be taken already, by us, and wait for the lease to end.
        """
        owned_slot.request(request.token, request.limit, request.incarnation)
        until = time.monotonic() + CLAIM_PATIENCE
        while self.may_claim() or again:
            try:
                return self.runtime.ledger().claim(request, again=again)
            except LedgerUnavailable as error:
                again = True
                if time.monotonic() >= until or self.runtime.table.header.fenced:
                    logger.warning(
                        "The ledger does not answer (%s); unconfirmed claims are given back", error
                    )
                    break
                time.sleep(PAUSE)
            except LedgerRefused as refusal:
                logger.error("%s", refusal)
                break
        if again:
            # A request before may have been granted; after a refusal so may be the next one, with another key.
            unconfirmed = unconfirmed_claim(request.incarnation, request.token, request.limit)
            self.runtime.spool.put_unconfirmed(unconfirmed)
        return []

    def _execute_batch(
        self, owned_slot: OwnedSlot, interrupts: Interrupts, request: ClaimRequest, claims: Sequence[Claim]
    ) -> dict[int, CompletedClaim]:
        """Execute claims one after the other; give the rest back when they take much longer than expected.

        Returns what came of them, by their numbers in the batch. Each completion is in shared memory before the next
        claim begins, so it is reported even if this process dies.
        """
        spool, completed = self.runtime.spool, dict[int, CompletedClaim]()
        until = time.monotonic() + 2 * batching.BATCH_SECONDS
        owned_slot.receive(request.token, [pack_claim(claim) for claim in claims])
        with self._watch().over(owned_slot):
            for done, claim in enumerate(claims):
                # Before each: the fence may have closed, or the worker may have registered anew since the claim was
                # made, and then another worker may have the run.
                if not self.may_claim() or self.runtime.table.header.incarnation != claim.incarnation:
                    spool.put(*map(PendingReport, claims[done:]))
                    break
                nth, began = claim.token.int - request.token.int, time.monotonic()
                if began > until:
                    completed[nth] = given_back(claim)
                    continue
                deadline = processes.boottime() + claim.timeout
                if owned_slot.begin(nth, claim.claim_seq, deadline, partial(spool.holds, claim.token)):
                    store, name = self.runtime.log_store, self.runtime.config.name
                    outcome = execute(claim, owned_slot, self.targets, store, interrupts, name)
                    verdict = verdict_on(outcome, claim.attempt, claim.retry, losses=claim.losses)
                    completed[nth] = one = CompletedClaim(claim, outcome, verdict)
                    if not owned_slot.complete(nth, pack_completion_for_slot(one.outcome, one.verdict)):
                        spool.put(PendingReport.of(one))
                    self.runtime.lengths.note(claim.tenant_id, time.monotonic() - began)
        return completed

    def _report(
        self, owned_slot: OwnedSlot, completed: Mapping[int, CompletedClaim], request: ClaimRequest | None
    ) -> list[Claim]:
        """Report a batch, without what the guard has taken and reports itself; return the next batch."""
        requested = (request.token, request.limit, request.incarnation) if request else ()
        taken = owned_slot.start_report(*requested)
        ours = [one for nth, one in completed.items() if not taken >> nth & 1]
        result = report(self.runtime, ours, request)
        if result is None and request is not None:
            return self._claim(owned_slot, request, again=True)
        return result.claims if result else []

    def _watch(self) -> Watchdog:
        if self._watchdog is None or self._watchdog.pid != os.getpid():
            self._watchdog = Watchdog(self.runtime.table)
            if os.getpid() != self.runtime.table.header.parent[0]:
                # In the parent they stay: a SIGHUP makes it a new worker, by its environment.
                hide_keys()
        return self._watchdog
