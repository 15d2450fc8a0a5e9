"""A claim, and what came of it, as they are written to a slot and to the spool."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from ..ids import EPOCH
from ..ledger.interface import Claim
from ..outcomes import SUCCEEDED, LogPointer, Outcome, now_utc
from ..retries import NAMED_CLASSES, Verdict

PACKED = ("claim_seq", "attempt", "version", "tenant_id", "tenant", "gated", "timeout", "losses")
PACKED_IDS = ("run_id", "token", "incarnation", "job_id")
RETRY_KEYS = ("max_attempts", "backoff", "base", "cap", "jitter", "max_losses")
# The errors that the guard itself may report; the other names of a policy are for the process that ran the target.
GUARD_ERRORS = ("TimeLimitReached",)


def pack_claim(claim: Claim) -> dict[str, Any]:
    """Keep what reports and retries need of a claim, but not its target and input: it must fit a slot."""
    packed = {name: getattr(claim, name) for name in PACKED}
    packed |= {name: str(getattr(claim, name)) for name in PACKED_IDS}
    retry = {key: claim.retry[key] for key in RETRY_KEYS if key in claim.retry}
    for error_class in NAMED_CLASSES:
        if names := [name for name in GUARD_ERRORS if name in (claim.retry.get(error_class) or ())]:
            retry[error_class] = names
    return {**packed, "retry": retry}


def unpack_claim(packed: dict[str, Any]) -> Claim:
    ids = {name: UUID(packed[name]) for name in PACKED_IDS}
    return Claim(
        **{**packed, **ids},
        job_name="",
        trigger="",
        planned_at=EPOCH,
        claimed_at=EPOCH,
        target={},
        input=None,
        allowed_hosts=[],
    )


def pack_completion(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    packed = asdict(outcome)
    for instant in ("started_at", "finished_at"):
        packed[instant] = packed[instant].isoformat()
    return {"outcome": packed, "verdict": asdict(verdict)}


def pack_completion_for_slot(outcome: Outcome, verdict: Verdict) -> dict[str, Any]:
    """Pack a completion where room is scarce: a success without result and log needs no words."""
    if verdict.state == SUCCEEDED and outcome.result is None and outcome.log is None:
        return {}
    return pack_completion(outcome, verdict)


def unpack_completion(packed: dict[str, Any]) -> tuple[Outcome, Verdict]:
    if "outcome" not in packed:
        now = now_utc()
        return Outcome(SUCCEEDED, now, now), Verdict(SUCCEEDED)
    outcome = dict(packed["outcome"])
    for instant in ("started_at", "finished_at"):
        outcome[instant] = datetime.fromisoformat(outcome[instant])
    if outcome["log"] is not None:
        outcome["log"] = LogPointer(**outcome["log"])
    outcome["names"] = tuple(outcome.get("names", ()))
    return Outcome(**outcome), Verdict(**packed["verdict"])
