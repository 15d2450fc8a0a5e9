"""What a check says: a sentence about what is, and one about what to do."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str
    do: str = ""


Findings = Iterator[Finding]
Check = Callable[[], Findings]


def fine(what: str) -> Finding:
    return Finding(Level.FINE, what)


def note(what: str, do: str = "") -> Finding:
    return Finding(Level.NOTE, what, do)


def problem(what: str, do: str) -> Finding:
    return Finding(Level.PROBLEM, what, do)


def counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def age(seconds: float) -> str:
    """A length of time as a person says it: 45 s, 12 min, 3.5 h, 4 days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} days"
