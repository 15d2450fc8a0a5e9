"""The outcome of an attempt as a value. It is made first and reported afterwards."""

from __future__ import annotations

import hashlib
import os
import re
import traceback
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from .secret_values.masking import Mask, unmasked
from .secret_values.references import SecretMissing

SUCCEEDED = "succeeded"
FAILED = "failed"

TRANSIENT = "transient"
PERMANENT = "permanent"
USER = "user"
TIMEOUT = "timeout"
WORKER_LOST = "worker_lost"
CANCELLED = "cancelled"
ERROR_CLASSES = (TRANSIENT, PERMANENT, USER, TIMEOUT, WORKER_LOST, CANCELLED)

MAX_LINE = 500
MAX_TYPE = 200
MAX_BASES = 50
HERE = os.path.dirname(__file__) + os.sep


class PermanentError(Exception):
    """The run cannot succeed, however often it is tried."""


class BadArguments(TypeError):
    """The target cannot be called with these arguments."""


class UnknownTarget(Exception):
    """This worker does not know the target."""


class CannotReplace(Exception):
    """The target tried to put another one in its place."""


class TimeLimitReached(Exception):
    """The run took longer than its time limit."""


class RunCancelled(Exception):
    """The run was cancelled while it was running."""


CLASSES_OF_EXCEPTIONS: tuple[tuple[tuple[type[Exception], ...], str], ...] = (
    ((PermanentError,), PERMANENT),
    ((BadArguments, CannotReplace, SecretMissing, UnknownTarget), USER),
    ((TimeLimitReached,), TIMEOUT),
    ((RunCancelled,), CANCELLED),
)


@dataclass(frozen=True)
class LogPointer:
    object: str
    offset: int
    length: int


@dataclass(frozen=True)
class Outcome:
    kind: str
    started_at: datetime
    finished_at: datetime
    error_class: str | None = None
    error_type: str | None = None
    error_line: str | None = None
    fingerprint: str | None = None
    exit_code: int | None = None
    result: Any = None
    retry_after: float | None = None
    log: LogPointer | None = None
    # Names of the error for a retry policy, the most specific first.
    names: tuple[str, ...] = ()
    # The next attempt's input, where it differs from this one's.
    next_input: dict[str, Any] | None = None
    # The call was accepted and its outcome follows: the digest of the token, and within how many seconds.
    callback_digest: str = ""
    callback_timeout: float = 0.0
    # Identifies the callback that reported this outcome, so that its repetition is recognised.
    callback_content: str = ""

    @property
    def awaited(self) -> bool:
        return bool(self.callback_digest) and not self.callback_content

    @property
    def succeeded(self) -> bool:
        return self.kind == SUCCEEDED


def classify(exception: BaseException) -> str:
    for kinds, error_class in CLASSES_OF_EXCEPTIONS:
        if isinstance(exception, kinds):
            return error_class
    return TRANSIENT


def failure(
    exception: BaseException, started_at: datetime, finished_at: datetime, masked: Mask = unmasked
) -> Outcome:
    return Outcome(
        FAILED,
        started_at,
        finished_at,
        error_class=classify(exception),
        error_type=type_name(exception),
        error_line=first_line(masked(str(exception) or type(exception).__doc__ or "")),
        fingerprint=fingerprint(exception, masked),
        names=names_of(exception),
    )


def stated_failure(
    error_class: str, error_type: str, line: str, started_at: datetime, finished_at: datetime
) -> Outcome:
    """Make a failure that was not raised: an exit code, a status, a process that was killed."""
    status = re.fullmatch(r"HTTP (\d)\d\d", error_type)
    return Outcome(
        FAILED,
        started_at,
        finished_at,
        error_class=error_class,
        error_type=error_type,
        error_line=first_line(line),
        fingerprint=_digest([error_type, without_numbers(first_line(line))]),
        names=(error_type, f"HTTP {status[1]}xx") if status else (error_type,),
    )


def worker_lost(line: str, started_at: datetime, finished_at: datetime) -> Outcome:
    """Make the failure of an attempt whose worker is lost: one group of dead letters, whoever found the loss."""
    lost = stated_failure(WORKER_LOST, "WorkerLost", line, started_at, finished_at)
    return replace(lost, fingerprint=_digest(["WorkerLost"]))


def as_stopped(outcome: Outcome, reason: str, timeout: float) -> Outcome:
    """Replace the failure of a body that was signalled to stop by the reason for the signal."""
    if outcome.succeeded or reason not in (TIMEOUT, CANCELLED):
        return outcome
    stopped = stopped_outcome(reason, timeout, outcome.started_at, outcome.finished_at)
    return replace(stopped, exit_code=outcome.exit_code)


def stopped_outcome(reason: str, timeout: float, started_at: datetime, finished_at: datetime) -> Outcome:
    name, line = "RunCancelled", "The run was cancelled."
    if reason == TIMEOUT:
        name, line = "TimeLimitReached", f"The run reached its time limit of {timeout:g} s."
    return stated_failure(reason, name, line, started_at, finished_at)


def names_of(exception: BaseException) -> tuple[str, ...]:
    """List the names of its class and its bases, in the order of inheritance, each with and without its module."""
    names: list[str] = []
    for kind in type(exception).__mro__[:MAX_BASES]:
        if kind is not object:
            names += [f"{kind.__module__}.{kind.__qualname__}", kind.__name__]
    return tuple(name[-MAX_TYPE:] for name in dict.fromkeys(names))


def type_name(exception: BaseException) -> str:
    kind = type(exception)
    named_alone = kind.__module__ == "builtins" or kind.__module__.startswith(f"{__package__}.")
    name = kind.__qualname__ if named_alone else f"{kind.__module__}.{kind.__qualname__}"
    # The ledger stores this much; a report that it refused would make the run execute again.
    return first_line(name)[-MAX_TYPE:]


def first_line(text: str) -> str:
    # PostgreSQL takes neither NUL nor half a character.
    text = text.replace("\x00", "").encode("utf-8", "backslashreplace").decode()
    lines = text.strip().splitlines()
    line = lines[0].strip() if lines else ""
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def fingerprint(exception: BaseException, masked: Mask = unmasked) -> str:
    """Hash the error so that line numbers, addresses, counts and secrets in its message do not change the result."""
    frames = [
        # The last two parts of the path: the rest differs between machines.
        "/".join(frame.filename.replace("\\", "/").split("/")[-2:]) + f":{frame.name}"
        for frame in traceback.extract_tb(exception.__traceback__)
        if "/celery/" not in frame.filename and not frame.filename.startswith(HERE)
    ]
    line = without_numbers(first_line(masked(str(exception))))
    return _digest([type_name(exception), line, *frames[-10:]])


def without_numbers(text: str) -> str:
    text = re.sub(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8,}\b", "#", text)
    return re.sub(r"\d+", "#", text)


def _digest(parts: list[str]) -> str:
    text = "\n".join(parts).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def now_utc() -> datetime:
    return datetime.now(timezone.utc)
