"""One slot of the table: its states, its fields in shared memory, and the request to kill what it runs."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from uuid import UUID

from ..ledger.interface import token_at
from ..process import processes
from .header import NIL
from .record import shared_record

# REQUESTED: claims were requested, and none of them is begun. HELD: one is at work. FOREIGN: a task of the host's.
FREE, REQUESTED, HELD, REPORTING, FOREIGN = range(5)
CLAIMED = (REQUESTED, HELD, REPORTING)
# A batch is what one slot carries out in this time.
BATCH_SECONDS = 0.1

# Reasons are stored as their index in this list.
KILL_REASONS = ("", "timeout", "cancelled", "fenced", "gone", "given_back", "hung")
NOT_KILLED, SOFT, HARD = range(3)


@shared_record
class SlotRecord(ctypes.Structure):
    """One slot in shared memory. Its owner writes all but the last group, or the guard once the owner is dead."""

    __slots__ = ()

    sequence: int
    pid: int
    pid_started: int
    state: int
    since: float
    deadline: float
    started_at: float
    # The process group of a body that runs outside of the owner, and its leader's start time.
    body: int
    body_started: int
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
    # One bit for each claim that the guard has taken out of the batch.
    taken: int

    def set_state(self, state: int) -> None:
        self.state = state
        self.since = processes.boottime()

    def set_owner(self, pid: int, started: int) -> None:
        self.pid = pid
        self.pid_started = started

    def set_claim(self, token: UUID, claim_seq: int, deadline: float) -> None:
        self.token = token
        self.claim_seq = claim_seq
        self.deadline = deadline
        self.started_at = time.time()

    def set_batch(self, base: UUID, count: int) -> None:
        self.base = base
        self.count = count
        self.taken = 0
        self.completions_length = self.claims_length = 0
        self.set_next(NIL, 0)

    def set_next(self, base: UUID, count: int) -> None:
        self.next_base = base
        self.next_count = count

    def set_body(self, group: int, leader_started: int) -> None:
        self.body = group
        self.body_started = leader_started


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


@dataclass(frozen=True)
class KillRequest:
    token: UUID
    reason: str
    at: float
    stage: int
