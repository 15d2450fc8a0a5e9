"""Bring the lines of running attempts to the platform, so that a person can read along."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from uuid import UUID

from ..errors import LedgerRefused, LedgerUnavailable
from ..shared.slot_record import HELD

if TYPE_CHECKING:
    from ..ledger.https import HttpsLedger
    from ..shared.folder import Runtime

logger = logging.getLogger(__name__)

FOLLOW_EVERY = 2.0
MAX_CHUNK = 512 * 1024


class LogFollower(threading.Thread):
    """Follow every running attempt of this worker. Lines that were brought survive this machine."""

    def __init__(self, runtime: Runtime, open_ledger: Callable[[], HttpsLedger]) -> None:
        super().__init__(name="beatkeeper-follower", daemon=True)
        self._runtime, self._open_ledger = runtime, open_ledger
        self._offsets: dict[tuple[UUID, int], int] = {}
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
        """Bring the new lines of everything that runs."""
        now = dict(self._running())
        self._offsets = {claim: offset for claim, offset in self._offsets.items() if claim in now}
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
        offset = self._offsets.get(claim, 0)
        lines = self._runtime.log_store.read_open(*claim, offset=offset)
        if not lines:
            return
        chunk = lines[:MAX_CHUNK]
        try:
            self._offsets[claim] = ledger.append_log(*claim, incarnation, offset, chunk)
        except LedgerRefused as refusal:
            # It ended meanwhile, or is no longer ours: its end is reported elsewhere.
            logger.debug("Lines are not taken any more: %s", refusal)
            self._refused.add(claim)
