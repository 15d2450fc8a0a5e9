"""Logs of a worker that cannot reach the platform's store: written here, and brought there with the result.

An attempt that ended points to its own open file; whoever tells the result brings the lines along, also when that is
hours later and out of the spool. What runs is followed: its lines are brought as they come.
"""

from __future__ import annotations

import gzip
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import UUID

from .ledger import LedgerRefused, LedgerUnavailable
from .log_store import FolderLogStore, LogMissing
from .outcomes import LogPointer
from .slots import HELD

if TYPE_CHECKING:
    from .https import HttpsLedger
    from .runtime import Runtime

logger = logging.getLogger(__name__)

# Where a log is that has not been brought yet.
HERE = LogPointer("here", 0, 0)
FOLLOW_EVERY = 2.0
LARGEST_CHUNK = 512 * 1024


class RemoteLogStore:
    """The open files of this machine; what is sealed is in the platform's store, and is not read from here."""

    def __init__(self, folder: Path) -> None:
        self._folder = FolderLogStore(folder)

    def open(self, run: UUID, claim_seq: int) -> IO[bytes]:
        return self._folder.open(run, claim_seq)

    def seal(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID) -> LogPointer | None:
        return HERE if self._folder.read_open(run, claim_seq) else None

    def discard(self, run: UUID, claim_seq: int) -> None:
        self._folder.discard(run, claim_seq)

    def read(self, pointer: LogPointer) -> bytes:
        raise LogMissing("the platform has it")

    def read_open(self, run: UUID, claim_seq: int, offset: int = 0) -> bytes | None:
        return self._folder.read_open(run, claim_seq, offset)

    def member(self, run: UUID, claim_seq: int) -> bytes:
        """The lines as the platform keeps them; empty: there are none any more."""
        lines = self._folder.read_open(run, claim_seq)
        return gzip.compress(lines, 6) if lines else b""


class Follower(threading.Thread):
    """Brings the lines of what runs, so that a person can read along, and has them if this machine dies."""

    def __init__(self, runtime: Runtime, open_ledger: Callable[[], HttpsLedger]) -> None:
        super().__init__(name="beatkeeper-follower", daemon=True)
        self._runtime, self._open_ledger = runtime, open_ledger
        self._brought: dict[tuple[UUID, int], int] = {}
        self._refused: set[tuple[UUID, int]] = set()

    def run(self) -> None:
        ledger = self._open_ledger()
        while True:
            try:
                self.follow(ledger)
            except LedgerUnavailable:
                logger.debug("The platform is away; lines are brought later", exc_info=True)
            except Exception:
                logger.exception("Lines of a running attempt cannot be brought")
            time.sleep(FOLLOW_EVERY)

    def follow(self, ledger: HttpsLedger) -> None:
        """One look at everything that runs."""
        now = dict(self._running())
        self._brought = {claim: offset for claim, offset in self._brought.items() if claim in now}
        self._refused &= now.keys()
        for claim, incarnation in now.items():
            if claim not in self._refused:
                self._bring(ledger, claim, incarnation)

    def _running(self) -> Iterator[tuple[tuple[UUID, int], UUID]]:
        for index in range(self._runtime.table.size):
            slot = self._runtime.table.read(index)
            details = self._runtime.table.claim(slot) if slot is not None and slot.state == HELD else None
            if details is not None:
                yield (UUID(details["run_id"]), int(details["claim_seq"])), UUID(details["incarnation"])

    def _bring(self, ledger: HttpsLedger, claim: tuple[UUID, int], incarnation: UUID) -> None:
        offset = self._brought.get(claim, 0)
        lines = self._runtime.log_store.read_open(*claim, offset=offset)
        if not lines:
            return
        chunk = lines[:LARGEST_CHUNK]
        try:
            self._brought[claim] = ledger.append_log(*claim, incarnation, offset, chunk)
        except LedgerRefused as refusal:
            # It ended meanwhile, or is no longer ours: its end is told by others.
            logger.debug("Lines are not taken any more: %s", refusal)
            self._refused.add(claim)
