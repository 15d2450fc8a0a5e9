"""The report of completed claims: to the ledger, or to the spool, from where the guard delivers it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from ..errors import LedgerUnavailable
from ..ledger.interface import ClaimRequest, CompletedClaim, ReportResult
from ..shared.folder import Runtime
from ..shared.spool import PendingReport

logger = logging.getLogger(__name__)

REPORT_PATIENCE = 2.0
PAUSE = 0.2


def report(
    runtime: Runtime, completed: Sequence[CompletedClaim], request: ClaimRequest | None
) -> ReportResult | None:
    """Report completed claims and request the next ones in the same round trip.

    Returns None if the claims are reported or spooled, but the fate of the request is unknown.
    """
    until, sent = time.monotonic() + REPORT_PATIENCE, request
    while True:
        try:
            result = runtime.ledger().report(completed, sent)
        except LedgerUnavailable:
            # The response may be lost, not the request. Reports are sent again as they are; the request is not, as it
            # may have been granted: it has to be repeated as a claim that says so.
            sent = None
            if time.monotonic() >= until:
                runtime.spool.put(*map(PendingReport.of, completed))
                return None
            time.sleep(PAUSE)
        except Exception:
            _report_one_by_one(runtime, completed)
            return None
        else:
            for one, state in zip(completed, result.states, strict=True):
                if state is None:
                    # The open log stays: it is all there is to read of this attempt.
                    logger.warning("Run %s was no longer ours; its result changes nothing", one.claim.run_id)
                elif one.outcome.log is not None:
                    runtime.log_store.discard(one.claim.run_id, one.claim.claim_seq)
            return result if sent is request else None


def _report_one_by_one(runtime: Runtime, completed: Sequence[CompletedClaim]) -> None:
    """Keep a result that the ledger refuses from costing the others of its batch their report."""
    if len(completed) > 1:
        for one in completed:
            report(runtime, [one], None)
        return
    for one in completed:
        logger.exception("The result of run %s was refused; the guard will try again", one.claim.run_id)
        runtime.spool.put(PendingReport.of(one))
