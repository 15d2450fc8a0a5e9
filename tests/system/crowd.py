"""What bodies of `tests.crowds` wrote down themselves, and what must be true of it whatever happened around them.

Each run has a file of its own with a line where a try of it starts, lines for as long as it lives and one where it
ends, each on disk before the body goes on. Nothing here asks the database: what that says is compared with these lines.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Try:
    """One attempt by its own lines. Killed, it has no end, but it was at work until its last line at least."""

    claim_seq: int
    pid: int
    started_at: float
    last_seen_at: float
    ended: bool = False


def tries(path: Path) -> list[Try]:
    """By their fencing token, which only rises."""
    found: dict[int, Try] = {}
    for line in lines(path):
        if line["event"] == "start":
            assert line["claim_seq"] not in found, f"{path.name}: claim {line['claim_seq']} was begun twice"
            found[line["claim_seq"]] = Try(line["claim_seq"], line["pid"], line["at"], line["at"])
        one = found[line["claim_seq"]]
        one.last_seen_at = line["at"]
        one.ended = line["event"] == "end"
    return [found[claim_seq] for claim_seq in sorted(found)]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    for text in path.read_text().splitlines(keepends=True):
        # The last may be only half there while it is written.
        if text.endswith("\n"):
            yield json.loads(text)


def overlaps(path: Path) -> list[str]:
    """Where a try was at work after one of a later claim had begun."""
    overlapping = []
    ordered = tries(path)
    for earlier, later in zip(ordered, ordered[1:], strict=False):
        into = earlier.last_seen_at - later.started_at
        if into > 0:
            overlapping.append(
                f"{path.name}: claim {earlier.claim_seq} was at work {into:.3f} s into {later}"
            )
    return overlapping
