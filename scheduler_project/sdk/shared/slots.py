"""The slot table: the claims that each process of a worker has, in memory shared by all of them and the guard.

One process writes a slot: its owner, which holds the slot's byte of the lock file. The kernel frees the byte when the
owner dies, so a claim without an owner is seen at once. Readers take no lock: a slot carries a sequence number, odd
while it is written, and a reader gives up after a few tries, so that a process stopped in the middle of a write cannot
hold up the guard.

A second byte per slot is the hand-over lock. The owner holds it while it moves from one state to the next; the guard
holds it while it checks that the claim it means is still there, and kills. So no kill hits the next run.

A slot may hold a batch of claims: one is at work, those before it are completed and not yet reported, those behind it
wait. What came of the completed ones is written beside them, so that it outlives the owner. The guard may take claims
that are not at work out of the batch, under the hand-over lock, by a bit for each: the owner leaves those alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from ..ledger.interface import MAX_CLAIMS
from .header import READ_TRIES, WorkerHeader
from .slot_record import Slot, SlotRecord

MAGIC = 0x424B534C4F545333
HEADER_SIZE = 4096
# Only what is written of it takes memory.
SLOT_SIZE = 256 * 1024
CLAIMS_OFFSET = 512
CLAIMS_SIZE = MAX_CLAIMS * 3000
COMPLETIONS_OFFSET = CLAIMS_OFFSET + CLAIMS_SIZE
COMPLETIONS_SIZE = SLOT_SIZE - COMPLETIONS_OFFSET


def read_header(folder: Path) -> WorkerHeader:
    """Return a copy of the header, without keeping the table open."""
    with open(folder / "slots", "rb") as file:
        return checked(WorkerHeader.from_buffer_copy(file.read(HEADER_SIZE)), folder)


def checked(header: WorkerHeader, folder: Path) -> WorkerHeader:
    if header.magic != MAGIC:
        raise ValueError(f"{folder}/slots is not a slot table of this version")
    return header


class SlotTable:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with open(folder / "slots", "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)
        self.header = checked(WorkerHeader.from_buffer(self._memory), folder)
        self.size = self.header.slots
        # The live records: what is read there may be half written (see `read`).
        self.records = [
            SlotRecord.from_buffer(self._memory, self._offset(index)) for index in range(self.size)
        ]
        # Opened once per process and kept: closing any descriptor of the file drops all its locks.
        self._locks = os.open(folder / "slots.lock", os.O_RDWR | os.O_CLOEXEC)

    @classmethod
    def create(cls, folder: Path, slots: int) -> SlotTable:
        with open(folder / "slots", "xb") as file:
            file.truncate(HEADER_SIZE + slots * SLOT_SIZE)
            file.write(bytes(WorkerHeader(magic=MAGIC, slots=slots)))
        (folder / "slots.lock").touch(mode=0o600, exist_ok=False)
        return cls(folder)

    def close(self) -> None:
        """Release the locks of a worker that is gone."""
        os.close(self._locks)

    @staticmethod
    def _offset(index: int) -> int:
        return HEADER_SIZE + index * SLOT_SIZE

    # Reading slots.

    def states(self) -> list[int]:
        return [record.state for record in self.records]

    def read(self, index: int) -> Slot | None:
        """Copy a slot; None if its writer stopped half way, or writes all the time."""
        record = self.records[index]
        for attempt in range(READ_TRIES):
            # The number is read before the copy and after it: an owner that moves on meanwhile changes it, so the
            # state of one claim never stands beside the token of another.
            before = record.sequence
            if not before & 1:
                slot = self.raw(index)
                if record.sequence == before:
                    return slot
            if attempt > 5:
                time.sleep(0.0002)
        return None

    def raw(self, index: int) -> Slot:
        """Copy a slot as it stands now, perhaps half written."""
        slot = Slot.from_buffer_copy(self._memory, self._offset(index))
        slot.index = index
        slot.count, slot.next_count = min(slot.count, MAX_CLAIMS), min(slot.next_count, MAX_CLAIMS)
        return slot

    def batch(self, index: int) -> dict[int, dict[str, Any]]:
        """Return the claims of the batch by their numbers in it, as packed; empty if nothing was claimed.

        Read it while the owner stands still: the text carries no sequence number.
        """
        record = self.records[index]
        base = record.base.int
        text = self._text(index, CLAIMS_OFFSET, min(record.claims_length, CLAIMS_SIZE))
        return {UUID(claim["token"]).int - base: claim for claim in map(json.loads, text.splitlines())}

    def claim(self, slot: Slot) -> dict[str, Any] | None:
        """Return the claim at work, as packed; None if its owner went on and it cannot be read now."""
        with contextlib.suppress(KeyError, ValueError):
            return self.batch(slot.index)[slot.nth]
        return None

    def completions(self, index: int) -> dict[int, dict[str, Any]]:
        """Return what came of the completed claims of the batch, by their numbers in it."""
        length = min(self.records[index].completions_length, COMPLETIONS_SIZE)
        text = self._text(index, COMPLETIONS_OFFSET, length)
        return {line["nth"]: line for line in map(json.loads, text.splitlines())}

    def _text(self, index: int, offset: int, length: int) -> bytes:
        start = self._offset(index) + offset
        return self._memory[start : start + length]

    # Locks. They belong to the process, so within one process nothing may take a slot twice (see `OwnedSlot`).

    def take_ownership(self, index: int) -> bool:
        """Return False if another process has the slot and lives."""
        with contextlib.suppress(OSError):
            fcntl.lockf(self._locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, index)
            return True
        return False

    def drop_ownership(self, index: int) -> None:
        fcntl.lockf(self._locks, fcntl.LOCK_UN, 1, index)

    @contextlib.contextmanager
    def hand_over(self, index: int, wait: float | None = None) -> Iterator[bool]:
        """Hold the slot still: yield False if the lock did not come within `wait` seconds.

        The owner waits without a limit. The guard limits its wait, so that a child stopped while it holds the lock
        does not keep it from the other slots.
        """
        byte = self.size + index
        locked = self._lock_within(byte, wait)
        try:
            yield locked
        finally:
            if locked:
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

    # Writing a batch: the owner alone.

    def write_claims(self, index: int, claims: Sequence[dict[str, Any]]) -> None:
        text = b"\n".join(json.dumps(claim, separators=(",", ":")).encode() for claim in claims)
        if len(text) > CLAIMS_SIZE:
            raise ValueError(f"claims of {len(text)} bytes do not fit their slot")
        start = self._offset(index) + CLAIMS_OFFSET
        self._memory[start : start + len(text)] = text
        # The length goes last: a batch whose owner died before it counts as never received, and is claimed again to
        # be given back.
        self.records[index].claims_length = len(text)

    def add_completion(self, index: int, line: bytes) -> bool:
        """Append what came of a claim; return False if there is no room for it."""
        record = self.records[index]
        length = record.completions_length
        if length + len(line) > COMPLETIONS_SIZE:
            return False
        start = self._offset(index) + COMPLETIONS_OFFSET + length
        self._memory[start : start + len(line)] = line
        # The length goes last: of a line that its owner could not finish the guard reads nothing.
        record.completions_length = length + len(line)
        return True
