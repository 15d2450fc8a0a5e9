"""Results that could not be reported yet, on disk: one file per claim, delivered and removed by the guard.

A claim in the spool is still held: heartbeats go on listing its token until the ledger has the result. So are claims
of which it is unknown whether they were made, one file per request, until the guard has found out.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from ..ledger.interface import Claim, ClaimRequest, CompletedClaim, WorkQueue, token_at
from ..outcomes import Outcome
from ..process import processes
from ..retries import Verdict
from .claim_record import pack_claim, pack_completion, unpack_claim, unpack_completion

# A request may still be under way when the process that sent it is gone; what is claimed later than that goes back by
# recovery.
REQUEST_SECONDS = 5.0
NO_QUEUE = WorkQueue(0, 0, 0, "")


@dataclass(frozen=True)
class PendingReport:
    """A result to report. Without an outcome the run is given back."""

    claim: Claim
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    # The writer could not seal the log any more.
    log_is_open: bool = False

    @classmethod
    def of(cls, completed: CompletedClaim) -> PendingReport:
        return cls(completed.claim, completed.outcome, completed.verdict)


@dataclass(frozen=True)
class UnconfirmedClaim:
    """Claims whose response was not read: made, about to be made, or never made. None of them was begun."""

    incarnation: UUID
    base: UUID
    count: int
    # Boot time in whole seconds: until then they may still be made.
    until: int

    @property
    def tokens(self) -> list[UUID]:
        return [token_at(self.base, nth) for nth in range(self.count)]

    @property
    def may_still_be_made(self) -> bool:
        # An instant further ahead than that was written before the machine started again: nothing is under way.
        return 0.0 < self.until - processes.boottime() <= REQUEST_SECONDS + 1

    def request(self) -> ClaimRequest:
        """Request what was made and nothing else: a request that knows no targets gets no other run."""
        return ClaimRequest(self.incarnation, self.base, NO_QUEUE, [], self.count)


def unconfirmed_claim(incarnation: UUID, base: UUID, count: int) -> UnconfirmedClaim:
    return UnconfirmedClaim(incarnation, base, count, round(processes.boottime() + REQUEST_SECONDS))


class Spool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, *pending: PendingReport) -> None:
        """Write reports to disk; on return outcomes survive a crash of the machine.

        A report that gives its run back is not synced: recovery would give it back too.
        """
        for report in pending:
            name = str(report.claim.token)
            beside = self.folder / f".{name}.{os.getpid()}"
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(_packed(report), file)
                file.flush()
                if report.outcome is not None:
                    os.fsync(file.fileno())
            # Renamed when it is whole: the delivery lists the folder meanwhile and must not read half a report.
            beside.replace(self.folder / f"{name}.json")
        if any(report.outcome is not None for report in pending):
            handle = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def tokens(self) -> list[UUID]:
        return [UUID(name[: -len(".json")]) for name in os.listdir(self.folder) if name.endswith(".json")]

    def holds(self, token: UUID) -> bool:
        """Look for a report; called before every run, so without a Path, which takes twice as long."""
        return os.path.exists(f"{self.folder}/{token}.json")

    def get(self, token: UUID) -> PendingReport | None:
        """Read a report; None if it was delivered meanwhile."""
        try:
            packed = json.loads(self._path(token).read_text())
        except FileNotFoundError:
            return None
        claim, log_is_open = unpack_claim(packed["claim"]), packed["log_is_open"]
        if "outcome" not in packed:
            return PendingReport(claim, log_is_open=log_is_open)
        return pending_report(claim, packed, log_is_open)

    def remove(self, token: UUID) -> None:
        self._path(token).unlink(missing_ok=True)

    def put_unconfirmed(self, *unconfirmed: UnconfirmedClaim) -> None:
        """Note each request once, however often a guard that could not go on comes back to it."""
        known = {one.base for one in self.unconfirmed()} if unconfirmed else set()
        for one in unconfirmed:
            if one.base not in known:
                self._path_of_unconfirmed(one).touch(mode=0o600)

    def unconfirmed(self) -> list[UnconfirmedClaim]:
        """List them by their names, which say everything: every heartbeat does so without opening a file."""
        found = [name.split(".") for name in os.listdir(self.folder) if name.endswith(".unconfirmed")]
        return [
            UnconfirmedClaim(UUID(incarnation), UUID(base), int(count), int(until))
            for base, count, incarnation, until, _ in found
        ]

    def remove_unconfirmed(self, one: UnconfirmedClaim) -> None:
        self._path_of_unconfirmed(one).unlink(missing_ok=True)

    def _path_of_unconfirmed(self, one: UnconfirmedClaim) -> Path:
        return self.folder / f"{one.base}.{one.count}.{one.incarnation}.{one.until}.unconfirmed"

    def set_aside(self, token: UUID) -> Path:
        """Keep a report for a person, outside of the worker's folder, which ends with it.

        Recovery decides on its run.
        """
        refused = self.folder.parent.parent / "refused"
        refused.mkdir(mode=0o700, exist_ok=True)
        kept = refused / f"{token}.json"
        with contextlib.suppress(FileNotFoundError):
            self._path(token).rename(kept)
        return kept

    def _path(self, token: UUID) -> Path:
        return self.folder / f"{token}.json"


def pending_report(claim: Claim, completion: dict[str, Any], log_is_open: bool = False) -> PendingReport:
    return PendingReport(claim, *unpack_completion(completion), log_is_open)


def _packed(report: PendingReport) -> dict[str, Any]:
    packed: dict[str, Any] = {"claim": pack_claim(report.claim), "log_is_open": report.log_is_open}
    if report.outcome is not None and report.verdict is not None:
        packed |= pack_completion(report.outcome, report.verdict)
    return packed
