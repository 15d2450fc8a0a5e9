"""The findings of a check: a sentence about the state, and one about what to do."""

from collections.abc import Callable, Iterator
from enum import Enum
from functools import wraps
from typing import NamedTuple


class Level(str, Enum):
    FINE = "fine"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(NamedTuple):
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


def fine_unless_found(what: str) -> Callable[[Check], Check]:
    """Let a check yield what is wrong alone; if it yields nothing, say that all is fine."""

    def decorate(check: Check) -> Check:
        @wraps(check)
        def checked() -> Findings:
            findings = check()
            yield next(findings, None) or fine(what)
            yield from findings

        return checked

    return decorate


def counted(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def age(seconds: float) -> str:
    """Format a length of time: 45 s, 12 min, 3.5 h, 4 days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.0f} days"
