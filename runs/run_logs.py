"""The lines of a run, wherever they are: in the store once an attempt ended, in its open file while it runs."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from django.conf import settings

from runs.models import Attempt, LiveRun, Run
from runs.states import LiveState
from scheduler_project.sdk.ids import MILLISECOND, id_range, instant_of
from scheduler_project.sdk.log_store import LogMissing, PlatformLogStore, log_store
from scheduler_project.sdk.outcomes import LogPointer

__all__ = ["Line", "LogMissing", "NoSuchAttempt", "attempts_of", "lines", "read_log", "store"]


class NoSuchAttempt(Exception):
    """The run has no attempt of this number."""


class Line(NamedTuple):
    at: str
    stream: str
    level: str
    text: str


class Claimed(NamedTuple):
    """One claim of the run, and where its lines are if they have been put away."""

    number: int
    claim_seq: int
    pointer: LogPointer | None


def attempts_of(run: Run) -> list[Attempt]:
    """Finished ones, oldest first. They lie in the partition of their run: their ids begin with its instant."""
    planned = instant_of(run.pk)
    first, beyond = id_range(planned, planned + MILLISECOND)
    found = Attempt.objects.filter(run_id=run.pk, id__gte=first, id__lt=beyond)
    return list(found.order_by("claim_seq"))


def read_log(run: Run, number: int | None = None) -> bytes:
    """JSON lines of one attempt, the latest unless a number is given. A run without output has none."""
    found = _read(_claim(run, number), run)
    if found is None:
        # Nothing is open: no line yet, or the attempt ended since we looked, and its row now says where.
        found = _read(_claim(run, number), run)
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


def _read(claim: Claimed | None, run: Run) -> bytes | None:
    if claim is None:
        return b""
    if claim.pointer:
        return store().read(claim.pointer)
    return store().read_open(run.pk, claim.claim_seq)


def _claim(run: Run, number: int | None) -> Claimed | None:
    claims = {claim.claim_seq: claim for claim in _claims(run)}
    wanted = [claim for claim in claims.values() if number in (None, claim.number)]
    if number is not None and not wanted:
        raise NoSuchAttempt
    return max(wanted, key=lambda claim: claim.claim_seq, default=None)


def _claims(run: Run) -> Iterator[Claimed]:
    under_way = (LiveState.RUNNING, LiveState.WAITING_CALLBACK)
    live = LiveRun.objects.filter(pk=run.pk, state__in=under_way).first()
    if live is not None:
        yield Claimed(live.attempt, live.claim_seq, _pointer(live))
    # Read after the live row, so that an attempt which ends in between is found as finished.
    for attempt in attempts_of(run):
        yield Claimed(attempt.number, attempt.claim_seq, _pointer(attempt))


def _pointer(attempt: Attempt | LiveRun) -> LogPointer | None:
    if not attempt.log_object or attempt.log_offset is None or attempt.log_length is None:
        return None
    return LogPointer(attempt.log_object, attempt.log_offset, attempt.log_length)


def store() -> PlatformLogStore:
    return _store_at(settings.LOG_STORE_URL)


@lru_cache
def _store_at(url: str) -> PlatformLogStore:
    return log_store(url)
