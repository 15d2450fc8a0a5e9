"""One slot of the table: its states, its fields in shared memory, and the request to kill what it runs."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from ..ledger.interface import token_at
from ..process import processes
from .header import NIL
from .record import Process, shared_record

# REQUESTED: claims were requested, and none of them is begun. HELD: one is at work. FOREIGN: a task of the host's.
FREE, REQUESTED, HELD, REPORTING, FOREIGN = range(5)
CLAIMED = (REQUESTED, HELD, REPORTING)

# Reasons are stored as their index in this list.
KILL_REASONS = ("", "timeout", "cancelled", "fenced", "gone", "given_back", "hung")
NOT_KILLED, SOFT, HARD = range(3)


@dataclass(frozen=True)
class KillRequest:
    token: UUID
    reason: str
    at: float
    stage: int


@shared_record
class SlotRecord(ctypes.Structure):
    """One slot in shared memory. Its owner writes all but the last group, or the guard once the owner is dead."""

    __slots__ = ()

    sequence: int
    owner: Process
    state: int
    since: float
    deadline: float
    started_at: float
    # The process group of a body that runs outside of the owner.
    body: Process
    claim_seq: int
    # The claim at work, of a batch that begins with `base`; `next_base` names what is requested with the report.
    token: UUID
    claims_length: int
    base: UUID
    count: int
    next_base: UUID
    next_count: int
    completions_length: int
    # The incarnation that requested claims last.
    requested_by: UUID
    _reserved: UUID

    kill_token: UUID
    kill_reason: int
    kill_at: float
    kill_stage: int
    # One bit for each claim that the guard has taken out of the batch, under the hand-over lock, or the owner could
    # begin one meanwhile.
    taken: int

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep the sequence number odd until the end of the block."""
        # Odd before the first word changes, even after the last: a reader in between drops what it read. `|=`, since
        # a writer that died in between left the number odd; adding 1 would make it even while we write.
        self.sequence |= 1
        try:
            yield
        finally:
            self.sequence += 1

    def set_state(self, state: int) -> None:
        self.state = state
        self.since = processes.boottime()

    def set_claim(self, token: UUID, claim_seq: int, deadline: float) -> None:
        self.token = token
        self.claim_seq = claim_seq
        self.deadline = deadline
        self.started_at = time.time()

    def set_batch(self, base: UUID, count: int) -> None:
        """Name the claims of a batch, none of them begun."""
        self.set_claim(base, 0, 0.0)
        self.base = base
        self.count = count
        self.taken = 0
        self.completions_length = self.claims_length = 0
        self.next_base, self.next_count = NIL, 0

    def clear(self) -> None:
        with self.writing():
            self.set_state(FREE)
            self.body = (0, 0)
            self.set_batch(NIL, 0)
            self.requested_by = NIL

    @property
    def kill_request(self) -> KillRequest:
        # Read in the order in which they are written, the stage last.
        token, reason = self.kill_token, KILL_REASONS[self.kill_reason]
        return KillRequest(token, reason, self.kill_at, self.kill_stage)

    def request_kill(self, token: UUID, reason: str, stage: int, at: float) -> None:
        # The stage is cleared first and set last: a handler that runs in between finds no request, and not the
        # reason of the last request beside the token of this one.
        self.kill_stage = NOT_KILLED
        self.kill_token = token
        self.kill_reason = KILL_REASONS.index(reason)
        self.kill_at = at
        self.kill_stage = stage


class Slot(SlotRecord):
    """A copy of a slot, as it stood at one moment."""

    __slots__ = ("index",)
    index: int

    @property
    def nth(self) -> int:
        """Return which claim of its batch is at work; the first is 0."""
        return self.token.int - self.base.int

    def tokens(self) -> list[UUID]:
        """Return all that is, or may become, a claim of this slot."""
        batch = [token_at(self.base, nth) for nth in range(self.count) if not self.taken >> nth & 1]
        return batch + [token_at(self.next_base, nth) for nth in range(self.next_count)]
