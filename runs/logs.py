"""Read the log of a run: from the store once an attempt ended, from its open file while it runs."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from django.conf import settings

from runs import history
from runs.models import Attempt, LiveRun, Run
from scheduler_project.sdk.logs.entry import STYLE as STYLE_CODE
from scheduler_project.sdk.logs.entry import visible
from scheduler_project.sdk.logs.store import LogMissing, PlatformLogStore, open_log_store
from scheduler_project.sdk.outcomes import LogPointer

__all__ = [
    "LEVELS",
    "Line",
    "LogMissing",
    "NoSuchAttempt",
    "Window",
    "lines",
    "read_log",
    "store",
    "without_style",
]


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
STYLE = re.compile(STYLE_CODE)


class NoSuchAttempt(Exception):
    """The run has no attempt of this number."""


class Line(NamedTuple):
    at: str
    stream: str
    level: str
    text: str
    # Of a line that an earlier version wrote: 0 and none.
    number: int = 0
    logger: str = ""
    extra: dict[str, Any] | None = None

    @property
    def with_logger(self) -> str:
        return f"{self.logger}: {self.text}" if self.logger else self.text


class Claimed(NamedTuple):
    """One claim of the run, and where its lines are stored."""

    number: int
    claim_seq: int
    pointer: LogPointer | None


def read_log(run: Run, number: int | None = None) -> bytes:
    """Return the JSON lines of one attempt, the latest unless a number is given; a run without output has none."""
    found = _read(run, number)
    if found is None:
        # Nothing is open: no line yet, or the attempt ended since we looked, and its row now says where.
        found = _read(run, number)
    return found or b""


def lines(log: bytes, first_number: int = 1) -> Iterator[Line]:
    """Read the lines of a log, or of a part of it. One without a number comes after the one before it."""
    number = first_number - 1
    for raw in log.splitlines():
        # A writer killed in the middle of a line leaves half of one, and a worker of somebody's may bring anything.
        line = _read_line(raw) or Line("", "", "", visible(raw.decode("utf-8", "replace")))
        number = line.number or number + 1
        yield line._replace(number=number)


@dataclass(frozen=True)
class Window:
    """Say which lines of a log are wanted."""

    # From this number on, so many at most.
    first: int = 1
    most: int | None = None
    # Of these the last so many.
    tail: int | None = None
    # Log records of this level or a higher one, and what is said about the log; empty: all lines.
    level: str = ""

    def of(self, found: Iterable[Line]) -> Iterator[Line]:
        wanted = LEVELS[LEVELS.index(self.level) :] if self.level else None
        chosen: Iterator[Line] = (
            line for line in found if wanted is None or line.level in wanted or line.stream == "beatkeeper"
        )
        chosen = islice((line for line in chosen if line.number >= self.first), self.most)
        return chosen if self.tail is None else iter(deque(chosen, maxlen=self.tail))


def without_style(text: str) -> str:
    """Leave out colours, which mean something to a terminal alone."""
    return STYLE.sub("", text)


def _read_line(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
        given = [line["t"], line["s"], line["l"], line["m"], line.get("g", "")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    number, extra = line.get("n", 0), line.get("x")
    if not all(isinstance(part, str) for part in given) or type(number) is not int or number < 0:
        return None
    # What an earlier version or another worker wrote may act on a terminal, or be no character.
    at, stream, level, text, logger = map(visible, given)
    if isinstance(extra, dict):
        extra = json.loads(json.dumps(extra, ensure_ascii=False).encode("utf-8", "replace"))
    return Line(at, stream, level, text, number, logger, extra if isinstance(extra, dict) else None)


def _read(run: Run, number: int | None) -> bytes | None:
    claims = {claim.claim_seq: claim for claim in _claims(run) if number in (None, claim.number)}
    if not claims:
        if number is not None:
            raise NoSuchAttempt
        return b""
    latest = claims[max(claims)]
    return store().read(latest.pointer) if latest.pointer else store().read_whole(run.pk, latest.claim_seq)


def _claims(run: Run) -> Iterator[Claimed]:
    live = LiveRun.objects.filter(pk=run.pk, state__in=history.CLAIMED).first()
    if live is not None:
        yield Claimed(live.attempt, live.claim_seq, _pointer(live))
    # Read after the live row, so that an attempt which ends in between is found as finished.
    for attempt in history.attempts_of(run.pk):
        yield Claimed(attempt.number, attempt.claim_seq, _pointer(attempt))


def _pointer(attempt: Attempt | LiveRun) -> LogPointer | None:
    if not attempt.log_object or attempt.log_offset is None or attempt.log_length is None:
        return None
    return LogPointer(attempt.log_object, attempt.log_offset, attempt.log_length)


_store_at = lru_cache(open_log_store)


def store() -> PlatformLogStore:
    return _store_at(settings.LOG_STORE_URL)
