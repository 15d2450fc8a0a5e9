"""Read the log of a run: from the store once an attempt ended, from its open file while it runs."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from django.conf import settings

from runs import history
from runs.models import Attempt, LiveRun, Run
from scheduler_project.sdk.logs.store import LogMissing, PlatformLogStore, open_log_store
from scheduler_project.sdk.outcomes import LogPointer

__all__ = ["Line", "LogMissing", "NoSuchAttempt", "lines", "read_log", "store"]


class NoSuchAttempt(Exception):
    """The run has no attempt of this number."""


class Line(NamedTuple):
    at: str
    stream: str
    level: str
    text: str


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


def lines(log: bytes) -> Iterator[Line]:
    for raw in log.splitlines():
        # A writer killed in the middle of a line leaves half of one, and a worker of somebody's may bring anything.
        yield _read_line(raw) or Line("", "", "", raw.decode("utf-8", "replace"))


def _read_line(raw: bytes) -> Line | None:
    try:
        line = json.loads(raw)
        given = Line(line["t"], line["s"], line["l"], line["m"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not all(isinstance(part, str) for part in given):
        return None
    # Half a surrogate pair is no character, and could not be sent.
    return Line(*(part.encode("utf-8", "replace").decode() for part in given))


def _read(run: Run, number: int | None) -> bytes | None:
    claims = {claim.claim_seq: claim for claim in _claims(run) if number in (None, claim.number)}
    if not claims:
        if number is not None:
            raise NoSuchAttempt
        return b""
    latest = claims[max(claims)]
    return store().read(latest.pointer) if latest.pointer else store().read_open(run.pk, latest.claim_seq)


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
