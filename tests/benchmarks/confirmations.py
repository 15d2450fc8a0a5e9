"""How many wake-ups had been confirmed when, as tests.benchmarks.timed_beat notes it in a file."""

import struct
from collections.abc import Sequence
from pathlib import Path

# How many so far, and the instant at which that was seen.
NOTE = struct.Struct("<qd")
FILE = "BENCH_CONFIRMATIONS"
BEAT = "tests.benchmarks.timed_beat:TimedScheduler"


def read(path: Path) -> list[tuple[int, float]]:
    if not path.exists():
        return []
    content = path.read_bytes()
    return list(NOTE.iter_unpack(content[: len(content) // NOTE.size * NOTE.size]))


def count(path: Path) -> int:
    notes = read(path)
    return notes[-1][0] if notes else 0


def instants(notes: Sequence[tuple[int, float]], before: int, wanted: int) -> list[float]:
    """When the first, the second … of the wake-ups after so many was confirmed.

    A wake-up names no run. One process marks and publishes in the same order, so the first run that was marked has
    the first confirmation, and so on; within a batch, which the broker confirms in any order, they all have the last.
    """
    found: list[float] = []
    for so_far, at in notes:
        found.extend([at] * (min(so_far - before, wanted) - len(found)))
    return found
