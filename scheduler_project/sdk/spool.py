"""Results that could not be told yet, on disk: one file per claim, delivered and removed by the guard.

A claim in the spool is still in hand: heartbeats go on listing its token until the ledger has the result. So are
claims of which nobody heard whether they were made, one file per ask, until the guard has heard it.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from . import processes
from .claim_details import claim_of, details_of, end_of, read_end
from .ledger import Claim, Ended, Lane, Wanted, token_at
from .outcomes import Outcome
from .retries import Verdict

# An ask may still be under way when whoever made it is gone; what is claimed later than that goes back by rescue.
ASK_SECONDS = 5.0
NO_LANE = Lane(0, 0, 0, "")


@dataclass(frozen=True)
class Untold:
    """What is to be told. Without an outcome the run is given back."""

    claim: Claim
    outcome: Outcome | None = None
    verdict: Verdict | None = None
    # The writer could not seal the log any more.
    log_is_open: bool = False

    @classmethod
    def of(cls, ended: Ended) -> Untold:
        return cls(ended.claim, ended.outcome, ended.verdict)


@dataclass(frozen=True)
class Unheard:
    """Claims whose answer nobody read: made, about to be made, or never made. None of them was begun."""

    incarnation: UUID
    base: UUID
    count: int
    # Boot time in whole seconds: until then they may still be made.
    until: int

    @property
    def tokens(self) -> list[UUID]:
        return [token_at(self.base, nth) for nth in range(self.count)]

    @property
    def may_come(self) -> bool:
        # Of an earlier boot nothing is under way.
        return 0.0 < self.until - processes.boottime() <= ASK_SECONDS + 1

    def wanted(self) -> Wanted:
        """To ask again for what was made, and for nothing else: who knows no targets gets no other run."""
        return Wanted(self.incarnation, self.base, NO_LANE, [], self.count)


def unheard_now(incarnation: UUID, base: UUID, count: int) -> Unheard:
    return Unheard(incarnation, base, count, round(processes.boottime() + ASK_SECONDS))


class Spool:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, *untold: Untold) -> None:
        """On return outcomes survive a crash of the machine; what is given back would be given back by rescue."""
        for one in untold:
            name = str(one.claim.token)
            beside = self.folder / f".{name}.{os.getpid()}"
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(_packed(one), file)
                file.flush()
                if one.outcome is not None:
                    os.fsync(file.fileno())
            beside.replace(self.folder / f"{name}.json")
        if any(one.outcome is not None for one in untold):
            _sync_folder(self.folder)

    def tokens(self) -> list[UUID]:
        return [UUID(name[: -len(".json")]) for name in os.listdir(self.folder) if name.endswith(".json")]

    def holds(self, token: UUID) -> bool:
        """Asked before every run, so without a Path: that takes twice as long."""
        return os.path.exists(f"{self.folder}/{token}.json")

    def get(self, token: UUID) -> Untold | None:
        """None: it was delivered meanwhile."""
        try:
            return _unpacked(json.loads(self._path(token).read_text()))
        except FileNotFoundError:
            return None

    def remove(self, token: UUID) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._path(token).unlink()

    def put_unheard(self, *unheard: Unheard) -> None:
        """Once of each ask, however often somebody who could not go on comes back to it."""
        known = {one.base for one in self.unheard()} if unheard else set()
        for one in unheard:
            if one.base not in known:
                self._path_of_unheard(one).touch(mode=0o600)

    def unheard(self) -> list[Unheard]:
        """All of it stands in the name, so every heartbeat can list it without opening a file."""
        found = [name.split(".") for name in os.listdir(self.folder) if name.endswith(".unheard")]
        return [
            Unheard(UUID(incarnation), UUID(base), int(count), int(until))
            for base, count, incarnation, until, _ in found
        ]

    def remove_unheard(self, one: Unheard) -> None:
        self._path_of_unheard(one).unlink(missing_ok=True)

    def _path_of_unheard(self, one: Unheard) -> Path:
        return self.folder / f"{one.base}.{one.count}.{one.incarnation}.{one.until}.unheard"

    def set_aside(self, token: UUID) -> Path:
        """Kept for a person to read, beside the folders of workers, which end with them; its run is left to rescue."""
        refused = self.folder.parent.parent / "refused"
        refused.mkdir(mode=0o700, exist_ok=True)
        kept = refused / f"{token}.json"
        with contextlib.suppress(FileNotFoundError):
            self._path(token).rename(kept)
        return kept

    def _path(self, token: UUID) -> Path:
        return self.folder / f"{token}.json"


def untold_of(claim: Claim, end: dict[str, Any], log_is_open: bool = False) -> Untold:
    return Untold(claim, *read_end(end), log_is_open)


def _packed(untold: Untold) -> dict[str, Any]:
    packed: dict[str, Any] = {"claim": details_of(untold.claim), "log_is_open": untold.log_is_open}
    if untold.outcome is not None and untold.verdict is not None:
        packed |= end_of(untold.outcome, untold.verdict)
    return packed


def _unpacked(packed: dict[str, Any]) -> Untold:
    claim, log_is_open = claim_of(packed["claim"]), packed["log_is_open"]
    if "outcome" not in packed:
        return Untold(claim, log_is_open=log_is_open)
    return untold_of(claim, packed, log_is_open)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
