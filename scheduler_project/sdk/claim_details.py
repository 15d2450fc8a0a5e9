"""A claim and what came of it as they are written down: in a slot, in the spool.

Who reads it may be the guard of a later version.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from .ids import EPOCH
from .ledger import Claim
from .outcomes import SUCCEEDED, LogPointer, Outcome, now_utc
from .retries import NAMED_CLASSES, Verdict

RETRY_KEYS = ("max_attempts", "backoff", "base", "cap", "jitter", "max_losses")
# What the guard itself may have to report; the other names of a policy are for the process that ran the target.
GUARDS_ERRORS = ("TimeLimitReached",)


def details_of(claim: Claim) -> dict[str, Any]:
    """What ends a claim, without what it was to do: it must fit a slot."""
    return {
        "run_id": str(claim.run_id),
        "claim_seq": claim.claim_seq,
        "token": str(claim.token),
        "incarnation": str(claim.incarnation),
        "attempt": claim.attempt,
        "job_id": str(claim.job_id),
        "version": claim.version,
        "tenant_id": claim.tenant_id,
        "tenant": claim.tenant,
        "gated": claim.gated,
        "timeout": claim.timeout,
        "losses": claim.losses,
        "retry": retry_of_guard(claim.retry),
    }


def retry_of_guard(retry: dict[str, Any]) -> dict[str, Any]:
    kept = {key: retry[key] for key in RETRY_KEYS if key in retry}
    for error_class in NAMED_CLASSES:
        if names := [name for name in GUARDS_ERRORS if name in (retry.get(error_class) or ())]:
            kept[error_class] = names
    return kept


def claim_of(details: dict[str, Any]) -> Claim:
    ids = {name: UUID(details[name]) for name in ("run_id", "token", "incarnation", "job_id")}
    return Claim(
        **{**details, **ids},
        job_name="",
        trigger="",
        planned_at=EPOCH,
        claimed_at=EPOCH,
        target={},
        input=None,
        allowed_hosts=[],
    )


def end_of(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    """What came of a claim, as it is written down."""
    packed = asdict(outcome)
    for instant in ("started_at", "finished_at"):
        packed[instant] = packed[instant].isoformat()
    return {"outcome": packed, "verdict": asdict(verdict)}


def short_end_of(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    """The same where room is scarce: of a success without result and log there is nothing to say."""
    if verdict.state == SUCCEEDED and outcome.result is None and outcome.log is None:
        return {}
    return end_of(outcome, verdict)


def read_end(end: dict[str, Any]) -> tuple[Outcome, Verdict]:
    if "outcome" not in end:
        now = now_utc()
        return Outcome(SUCCEEDED, now, now), Verdict(SUCCEEDED)
    outcome = dict(end["outcome"])
    for instant in ("started_at", "finished_at"):
        outcome[instant] = datetime.fromisoformat(outcome[instant])
    if outcome["log"] is not None:
        outcome["log"] = LogPointer(**outcome["log"])
    outcome["names"] = tuple(outcome.get("names", ()))
    return Outcome(**outcome), Verdict(**end["verdict"])
