"""How long the runs of each queue took recently, in memory that all processes of a worker share.

All processes of a worker read what one of them measured. Nothing is locked: an entry is one word, written at once, and
a lost update costs nothing.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

# A tenant and its seconds in one word. Two tenants with one index overwrite each other.
ENTRY = struct.Struct("=If")
ENTRIES = 4096
WEIGHT_OF_LAST = 0.2
FILE = "lengths"


class RunLengths:
    """The lengths by tenant: a worker serves one pool.

    A long run raises the length at once; short ones lower it by a fifth of the difference.
    """

    def __init__(self, folder: Path) -> None:
        with open(folder / FILE, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    @staticmethod
    def create(folder: Path) -> None:
        (folder / FILE).write_bytes(bytes(ENTRY.size * ENTRIES))

    def note(self, tenant: int, seconds: float) -> None:
        index = tenant % ENTRIES
        known, before = self._read(index)
        if known == tenant:
            seconds = max(seconds, before + (seconds - before) * WEIGHT_OF_LAST)
        [self._words[index]] = struct.unpack("=Q", ENTRY.pack(tenant, seconds))

    def below(self, seconds: float) -> dict[str, int]:
        """Return the milliseconds, at least one, of the queues whose runs are shorter than this."""
        entries = ENTRY.iter_unpack(self._words.tobytes())
        return {str(tenant): int(1000 * took) + 1 for tenant, took in entries if tenant and took < seconds}

    def _read(self, index: int) -> tuple[int, float]:
        tenant, seconds = ENTRY.unpack(struct.pack("=Q", self._words[index]))
        return tenant, seconds
