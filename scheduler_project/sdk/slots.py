"""The slot table: what each process of a worker has in hand, in memory shared by all of them and the guard.

One process writes a slot: its owner, the one that holds the slot's byte of the lock file. The kernel
frees the byte when the owner dies, so a claim without an owner is seen at once. Readers take no lock: a
slot carries a sequence number, odd while it is written, and a reader gives up after a few tries, so that a
process stopped in the middle of a write cannot hold up the guard.

A second byte per slot is the hand-over lock: the owner holds it while it moves from one state to the next,
the guard while it looks whether the claim it means is still there and kills. So no kill hits the next run.

A slot may hold a batch of claims: one is at work, those before it are over and not yet told, those behind it wait.
What came of the former is written beside them, so that it outlives the owner. The guard may take claims that are
not at work out of the batch, under the hand-over lock, by a bit for each: the owner leaves those alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from . import processes
from .ledger import MOST_CLAIMS, token_at
from .slot_header import H_MAGIC, H_SLOTS, NOBODY, READ_TRIES, WorkerHeader

FREE, ASKED, HELD, REPORTING, FOREIGN = range(5)
CLAIMED = (ASKED, HELD, REPORTING)

MAGIC = 0x424B534C4F545332
HEADER_SIZE = 4096
# Only what is written of it takes memory.
SLOT_SIZE = 256 * 1024
DETAILS_OFFSET = 512
DETAILS_SIZE = MOST_CLAIMS * 3000
ENDS_OFFSET = DETAILS_OFFSET + DETAILS_SIZE
ENDS_SIZE = SLOT_SIZE - ENDS_OFFSET

# Words of a slot. The owner writes all but the last group, which is the guard's.
(
    S_SEQUENCE,
    S_PID,
    S_PID_STARTED,
    S_STATE,
    S_SINCE,
    S_DEADLINE,
    S_STARTED_AT,
    S_BODY,
    S_BODY_STARTED,
    S_CLAIM_SEQ,
    S_TOKEN,
    _,
    S_DETAILS_LENGTH,
    S_BASE,
    _,
    S_COUNT,
    S_NEXT,
    _,
    S_NEXT_COUNT,
    S_ENDS_LENGTH,
    S_ASKER,
    _,
) = range(22)
S_KILL_TOKEN, _, S_KILL_REASON, S_KILL_AT, S_KILL_STAGE, S_TAKEN = range(24, 30)


@dataclass(frozen=True)
class Slot:
    """A slot as it stood at one moment."""

    index: int
    pid: int
    pid_started: int
    state: int
    since: float
    deadline: float
    started_at: float
    body: int
    body_started: int
    claim_seq: int
    # The claim at work, of a batch that begins with `base`; `next_base` names what was asked for with the report.
    token: UUID
    base: UUID
    count: int
    next_base: UUID
    next_count: int
    # The incarnation that asked last.
    asker: UUID
    # One bit for each claim that the guard has taken out of the batch.
    taken: int

    @property
    def nth(self) -> int:
        """Which claim of its batch is at work; the first is 0."""
        return self.token.int - self.base.int

    def tokens(self) -> list[UUID]:
        """All that is, or may become, a claim of this slot."""
        batch = [token_at(self.base, nth) for nth in range(self.count) if not self.taken >> nth & 1]
        return batch + [token_at(self.next_base, nth) for nth in range(self.next_count)]


@dataclass(frozen=True)
class KillRequest:
    token: UUID
    reason: str
    at: float
    stage: int


# Reasons are stored as their index in this list.
KILL_REASONS = ("", "timeout", "cancelled", "fenced", "gone", "given_back", "hung")
NOT_KILLED, SOFT, HARD = range(3)


def read_header(folder: Path) -> WorkerHeader:
    """As it stands now, for who only looks."""
    with open(folder / "slots", "rb") as file:
        head = memoryview(file.read(HEADER_SIZE))
    header = WorkerHeader(head)
    if head.nbytes < HEADER_SIZE or head.cast("Q")[H_MAGIC] != MAGIC:
        raise ValueError(f"{folder}/slots is not a slot table of this version")
    return header


class SlotTable(WorkerHeader):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        memory_fd = os.open(folder / "slots", os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(memory_fd, 0)
        finally:
            os.close(memory_fd)
        super().__init__(memoryview(self._memory))
        if self._words[H_MAGIC] != MAGIC:
            raise ValueError(f"{folder}/slots is not a slot table of this version")
        self.size = self._words[H_SLOTS]
        # Opened once per process and kept: closing any descriptor of the file drops all its locks.
        self._locks = os.open(folder / "slots.lock", os.O_RDWR | os.O_CLOEXEC)

    @classmethod
    def create(cls, folder: Path, slots: int) -> SlotTable:
        with open(folder / "slots", "xb") as file:
            file.truncate(HEADER_SIZE + slots * SLOT_SIZE)
            file.write(struct.pack("=QQ", MAGIC, slots))
        (folder / "slots.lock").touch(mode=0o600, exist_ok=False)
        return cls(folder)

    def close(self) -> None:
        """For who is through with the slots of a worker that is gone."""
        os.close(self._locks)

    # Reading slots.

    def state(self, index: int) -> int:
        return self._words[self._at(index) + S_STATE]

    def states(self) -> list[int]:
        return [self.state(index) for index in range(self.size)]

    def read(self, index: int) -> Slot | None:
        """None: its writer stopped half way, or writes all the time."""
        at = self._at(index) + S_SEQUENCE
        for attempt in range(READ_TRIES):
            before = self._words[at]
            if not before & 1:
                slot = self.raw(index)
                if self._words[at] == before:
                    return slot
            if attempt > 5:
                time.sleep(0.0002)
        return None

    def raw(self, index: int) -> Slot:
        """What stands there now, perhaps half written."""
        words, floats, at = self._words, self._floats, self._at(index)
        return Slot(
            index=index,
            pid=words[at + S_PID],
            pid_started=words[at + S_PID_STARTED],
            state=words[at + S_STATE],
            since=floats[at + S_SINCE],
            deadline=floats[at + S_DEADLINE],
            started_at=floats[at + S_STARTED_AT],
            body=words[at + S_BODY],
            body_started=words[at + S_BODY_STARTED],
            claim_seq=words[at + S_CLAIM_SEQ],
            token=self._uuid(at + S_TOKEN),
            base=self._uuid(at + S_BASE),
            count=min(words[at + S_COUNT], MOST_CLAIMS),
            next_base=self._uuid(at + S_NEXT),
            next_count=min(words[at + S_NEXT_COUNT], MOST_CLAIMS),
            asker=self._uuid(at + S_ASKER),
            taken=words[at + S_TAKEN],
        )

    def batch(self, index: int) -> dict[int, dict[str, Any]]:
        """What ends each claim of the batch, by its number in it; to be read while the owner stands still. Empty:
        nothing was claimed."""
        at = self._at(index)
        base = self._uuid(at + S_BASE).int
        text = self._text(at, DETAILS_OFFSET, min(self._words[at + S_DETAILS_LENGTH], DETAILS_SIZE))
        return {UUID(claim["token"]).int - base: claim for claim in map(json.loads, text.splitlines())}

    def has_details(self, index: int) -> bool:
        """False: what was asked for last has not been heard, or not been written down."""
        return self._words[self._at(index) + S_DETAILS_LENGTH] > 0

    def claim(self, slot: Slot) -> dict[str, Any] | None:
        """What ends the claim at work; None: it cannot be read now, its owner went on."""
        with contextlib.suppress(KeyError, ValueError):
            return self.batch(slot.index)[slot.nth]
        return None

    def ends(self, index: int) -> dict[int, dict[str, Any]]:
        """What came of those of the batch that are over, by their numbers in it."""
        at = self._at(index)
        text = self._text(at, ENDS_OFFSET, min(self._words[at + S_ENDS_LENGTH], ENDS_SIZE))
        return {end["place"]: end for end in map(json.loads, text.splitlines())}

    def _text(self, at: int, offset: int, length: int) -> bytes:
        start = at * 8 + offset
        return self._memory[start : start + length]

    def raw_owner(self, index: int) -> tuple[int, int]:
        at = self._at(index)
        return self._words[at + S_PID], self._words[at + S_PID_STARTED]

    def raw_body(self, index: int) -> tuple[int, int]:
        at = self._at(index)
        return self._words[at + S_BODY], self._words[at + S_BODY_STARTED]

    # Kill requests, written by the guard.

    def kill_request(self, index: int) -> KillRequest:
        at = self._at(index)
        return KillRequest(
            token=self._uuid(at + S_KILL_TOKEN),
            reason=KILL_REASONS[self._words[at + S_KILL_REASON]],
            at=self._floats[at + S_KILL_AT],
            stage=self._words[at + S_KILL_STAGE],
        )

    def request_kill(self, index: int, token: UUID, reason: str, stage: int, at: float) -> None:
        base = self._at(index)
        self._words[base + S_KILL_STAGE] = NOT_KILLED
        self._put_uuid(base + S_KILL_TOKEN, token)
        self._words[base + S_KILL_REASON] = KILL_REASONS.index(reason)
        self._floats[base + S_KILL_AT] = at
        self._words[base + S_KILL_STAGE] = stage

    # Locks. They belong to the process, so within one process nothing may take a slot twice (see `hand.Hand`).

    def take_ownership(self, index: int) -> bool:
        """False: another process has it, alive."""
        try:
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
        except OSError:
            return False
        return True

    def drop_ownership(self, index: int) -> None:
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, index)

    @contextlib.contextmanager
    def hand_over(self, index: int, wait: float | None = None) -> Iterator[bool]:
        """Yields False when the lock did not come within `wait` seconds; without `wait` it is waited for."""
        byte = self.size + index
        taken = self._lock_within(byte, wait)
        try:
            yield taken
        finally:
            if taken:
                fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, byte)

    def _lock_within(self, byte: int, wait: float | None) -> bool:
        if wait is None:
            fcntl.lockf(self._locks, fcntl.LOCK_EX, 1, byte)
            return True
        until = time.monotonic() + wait
        while True:
            try:
                fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError:
                if time.monotonic() >= until:
                    return False
                time.sleep(0.005)
            else:
                return True

    # Writing a slot: the owner, or the guard once the owner is dead.

    @contextlib.contextmanager
    def writing(self, index: int) -> Iterator[int]:
        """Yields the slot's first word. The number may be odd already, left so by a dead writer."""
        at = self._at(index)
        self._words[at + S_SEQUENCE] |= 1
        try:
            yield at
        finally:
            self._words[at + S_SEQUENCE] += 1

    def put_state(self, at: int, state: int) -> None:
        self._words[at + S_STATE] = state
        self._floats[at + S_SINCE] = processes.boottime()

    def put_owner(self, at: int, pid: int, started: int) -> None:
        self._words[at + S_PID] = pid
        self._words[at + S_PID_STARTED] = started

    def put_batch(self, at: int, base: UUID, count: int) -> None:
        self._put_uuid(at + S_BASE, base)
        self._words[at + S_COUNT] = count
        self._words[at + S_TAKEN] = 0
        self._words[at + S_ENDS_LENGTH] = self._words[at + S_DETAILS_LENGTH] = 0
        self.put_next(at, NOBODY, 0)

    def put_next(self, at: int, base: UUID, count: int) -> None:
        self._put_uuid(at + S_NEXT, base)
        self._words[at + S_NEXT_COUNT] = count

    def put_asker(self, at: int, incarnation: UUID) -> None:
        self._put_uuid(at + S_ASKER, incarnation)

    def taken(self, index: int) -> int:
        return self._words[self._at(index) + S_TAKEN]

    def take(self, index: int, bits: int) -> None:
        """Out of the batch; who takes holds the hand-over lock."""
        self._words[self._at(index) + S_TAKEN] |= bits

    def put_claim(self, at: int, token: UUID, claim_seq: int, deadline: float) -> None:
        self._put_uuid(at + S_TOKEN, token)
        self._words[at + S_CLAIM_SEQ] = claim_seq
        self._floats[at + S_DEADLINE] = deadline
        self._floats[at + S_STARTED_AT] = time.time()

    def put_body(self, at: int, group: int, leader_started: int) -> None:
        self._words[at + S_BODY] = group
        self._words[at + S_BODY_STARTED] = leader_started

    def put_details(self, at: int, details: Sequence[dict[str, Any]]) -> None:
        text = b"\n".join(json.dumps(one, separators=(",", ":")).encode() for one in details)
        if len(text) > DETAILS_SIZE:
            raise ValueError(f"claims of {len(text)} bytes do not fit their slot")
        start = at * 8 + DETAILS_OFFSET
        self._memory[start : start + len(text)] = text
        self._words[at + S_DETAILS_LENGTH] = len(text)

    def add_end(self, index: int, line: bytes) -> bool:
        """False: there is no room for it."""
        at = self._at(index)
        length = self._words[at + S_ENDS_LENGTH]
        if length + len(line) > ENDS_SIZE:
            return False
        start = at * 8 + ENDS_OFFSET + length
        self._memory[start : start + len(line)] = line
        self._words[at + S_ENDS_LENGTH] = length + len(line)
        return True

    def clear(self, index: int) -> None:
        with self.writing(index) as at:
            self.put_state(at, FREE)
            self.put_claim(at, NOBODY, 0, 0.0)
            self.put_body(at, 0, 0)
            self.put_batch(at, NOBODY, 0)
            self.put_asker(at, NOBODY)

    def _at(self, index: int) -> int:
        return (HEADER_SIZE + index * SLOT_SIZE) // 8
