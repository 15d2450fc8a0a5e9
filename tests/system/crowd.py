"""What bodies of `tests.crowds` wrote down themselves, and what must be true of it whatever happened around them.

Each run has a file of its own with a line where a try of it starts and one where it ends, both on disk before the
body goes on. Nothing here asks the database: what that says is compared with these lines.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Try:
    """One attempt by its own lines. Killed, it has no end, and ended before its process was replaced."""

    claim_seq: int
    pid: int
    started_at: float
    ended_at: float | None = None


def tries(path: Path) -> list[Try]:
    """By their fencing token, which only rises."""
    found: dict[int, Try] = {}
    for line in lines(path):
        if line["event"] == "start":
            assert line["claim_seq"] not in found, f"{path.name}: claim {line['claim_seq']} was begun twice"
            found[line["claim_seq"]] = Try(line["claim_seq"], line["pid"], line["at"])
        else:
            found[line["claim_seq"]].ended_at = line["at"]
    return [found[claim_seq] for claim_seq in sorted(found)]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines():
        yield json.loads(text)


def overlaps(path: Path) -> list[str]:
    """Where a try was at work after one of a later claim had begun."""
    told = []
    ordered = tries(path)
    for earlier, later in zip(ordered, ordered[1:], strict=False):
        last_seen = earlier.ended_at if earlier.ended_at is not None else earlier.started_at
        if last_seen > later.started_at:
            told.append(
                f"{path.name}: claim {earlier.claim_seq} was at work {last_seen - later.started_at:.3f} s into {later}"
            )
    return told
