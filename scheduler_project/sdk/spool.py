"""Results that could not be told yet, on disk: one file per claim, delivered and removed by the guard.

A claim in the spool is still in hand: heartbeats go on listing its token until the ledger has the result.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

from .ledger import Claim
from .outcomes import SUCCEEDED, LogPointer, Outcome, now_utc
from .retries import NAMED_CLASSES, Verdict

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
RETRY_KEYS = ("max_attempts", "backoff", "base", "cap", "jitter", "max_losses")
# What the guard itself may have to report; the other names of a policy are for the process that ran the target.
GUARDS_ERRORS = ("TimeLimitReached",)


@dataclass(frozen=True)
class Letter:
    """What is to be told. Without an outcome the run is given back."""

    claim: Claim
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    # The writer could not seal the log any more.
    log_is_open: bool = False


class Spool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, *letters: Letter) -> None:
        """On return outcomes survive a crash of the machine; what is given back would be given back by rescue."""
        for letter in letters:
            name = str(letter.claim.token)
            beside = self.folder / f".{name}.{os.getpid()}"
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(_packed(letter), file)
                file.flush()
                if letter.outcome is not None:
                    os.fsync(file.fileno())
            beside.replace(self.folder / f"{name}.json")
        if any(letter.outcome is not None for letter in letters):
            _sync_folder(self.folder)

    def tokens(self) -> list[UUID]:
        return [UUID(name[: -len(".json")]) for name in os.listdir(self.folder) if name.endswith(".json")]

    def get(self, token: UUID) -> Letter | None:
        """None: it was delivered meanwhile."""
        try:
            return _unpacked(json.loads(self._path(token).read_text()))
        except FileNotFoundError:
            return None

    def remove(self, token: UUID) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(token).unlink()

    def set_aside(self, token: UUID) -> None:
        """Kept for a person to read; its run is left to rescue."""
        with contextlib.suppress(FileNotFoundError):
            self._path(token).rename(self.folder / f"{token}.refused")

    def _path(self, token: UUID) -> Path:
        return self.folder / f"{token}.json"


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


def letter_of(claim: Claim, end: dict[str, Any], log_is_open: bool = False) -> Letter:
    if "outcome" not in end:
        now = now_utc()
        return Letter(claim, Outcome(SUCCEEDED, now, now), Verdict(SUCCEEDED))
    outcome = dict(end["outcome"])
    for instant in ("started_at", "finished_at"):
        outcome[instant] = datetime.fromisoformat(outcome[instant])
    if outcome["log"] is not None:
        outcome["log"] = LogPointer(**outcome["log"])
    outcome["names"] = tuple(outcome.get("names", ()))
    return Letter(claim, Outcome(**outcome), Verdict(**end["verdict"]), log_is_open)


def _packed(letter: Letter) -> dict[str, Any]:
    packed: dict[str, Any] = {"claim": details_of(letter.claim), "log_is_open": letter.log_is_open}
    if letter.outcome is not None and letter.verdict is not None:
        packed |= end_of(letter.outcome, letter.verdict)
    return packed


def _unpacked(packed: dict[str, Any]) -> Letter:
    claim, log_is_open = claim_of(packed["claim"]), packed["log_is_open"]
    if "outcome" not in packed:
        return Letter(claim, log_is_open=log_is_open)
    return letter_of(claim, packed, log_is_open)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
