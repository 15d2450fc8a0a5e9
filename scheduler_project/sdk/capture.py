"""What a body prints and logs, as JSON lines in the open file of its attempt.

A line is written to the file when it is complete, so that a follower sees it at once and a kill loses none. Secrets
are masked in it, and in whatever the body says besides: what it prints goes on to the worker's own output, and what it
logs to the handlers that the process has.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import IO, Any, TextIO
from uuid import UUID

from .log_store import LogStore
from .masking import Masker, in_use
from .outcomes import now_utc

MAX_BYTES = 10 * 1024 * 1024
LONGEST_LINE = 64 * 1024
SECRET_NAMES = ("password", "passwd", "token", "secret", "key", "authorization", "cookie", "credential")

# What celery says of its own work would be in every log, what it redirects from stdout there twice.
QUIET_LOGGERS = ("celery.redirected", "celery.app.trace", "celery.worker.strategy")


class AttemptLog:
    """The log of one attempt. The file comes to be with the first line: no output, no file."""

    def __init__(
        self,
        store: LogStore,
        run: UUID,
        claim_seq: int,
        *,
        mask: Iterable[str] = (),
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._store, self._run, self._claim_seq = store, run, claim_seq
        self.masked = Masker(mask)
        self._left = max_bytes
        self._max_bytes = max_bytes
        self._file: IO[bytes] | None = None
        self._lock = threading.RLock()
        self._closed = False

    def write(self, stream: str, text: str, level: str = "") -> None:
        moment = now_utc().isoformat(timespec="milliseconds")
        shown = self.masked.without_beginning(self.masked(text))
        line = json.dumps({"t": moment, "s": stream, "l": level, "m": shown})
        with self._lock:
            if self._closed or self._left <= 0:
                return
            self._left -= len(line) + 1
            if self._left <= 0:
                line = json.dumps(
                    {
                        "t": now_utc().isoformat(timespec="milliseconds"),
                        "s": "beatkeeper",
                        "l": "WARNING",
                        "m": f"The log ends here: it reached {self._max_bytes} bytes.",
                    }
                )
            self._put(line)

    def _put(self, line: str) -> None:
        # A full disk must cost the log, not the run.
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = self._store.open(self._run, self._claim_seq)
            self._file.write(line.encode() + b"\n")

    @property
    def empty(self) -> bool:
        return self._file is None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()


class LineWriter(io.TextIOBase):
    """Stands in for sys.stdout or sys.stderr: cuts into lines for the log, and passes everything on.

    A secret may come in several writes, so where there is one only whole lines are passed on.
    """

    def __init__(self, log: AttemptLog, stream: str, original: TextIO) -> None:
        self._log, self._stream, self._original = log, stream, original
        self._rest = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._log.write(self._stream, self._log.masked.shortened(line, LONGEST_LINE))
                self._pass_on(line + "\n")
            if len(self._rest) >= LONGEST_LINE:
                self._cut(self._log.masked.cut(self._rest))
        if not self._log.masked:
            with contextlib.suppress(Exception):
                self._original.write(text)
        return len(text)

    def finish(self) -> None:
        with self._lock:
            self._cut(len(self._rest))

    def _cut(self, at: int) -> None:
        """Of a line without an end."""
        line, self._rest = self._rest[:at], self._rest[at:]
        if line:
            self._log.write(self._stream, self._log.masked.shortened(line, LONGEST_LINE))
            self._pass_on(line)

    def _pass_on(self, text: str) -> None:
        if self._log.masked:
            with contextlib.suppress(Exception):
                self._original.write(self._log.masked(text))

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._original.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def fileno(self) -> int:
        return self._original.fileno()


class LogRecords(logging.Handler):
    def __init__(self, log: AttemptLog) -> None:
        super().__init__()
        self._log = log
        self._busy = threading.local()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if _is_quiet(record) or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            self._log.write("log", self.format(record), record.levelname)
        except Exception:
            self.handleError(record)
        finally:
            self._busy.now = False


class RecordMask(logging.Filter):
    """On every handler of the process: a record is masked before the first of them writes it."""

    def __init__(self, masked: Masker) -> None:
        super().__init__()
        self._masked = masked

    def filter(self, record: logging.LogRecord) -> bool:
        with contextlib.suppress(Exception):
            self._mask(record)
        return True

    def _mask(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if self._masked(message) != message:
            record.msg, record.args = self._masked(message), None
        if record.exc_info and not record.exc_text:
            text = FORMATTER.formatException(record.exc_info)
            if self._masked(text) != text:
                # Whatever formats it gets the text alone: the exception itself has the secret.
                record.exc_info, record.exc_text = None, self._masked(text)
        for name, value in vars(record).items():
            if name not in PLAIN_RECORD:
                record.__dict__[name] = self._masked.value(value)


FORMATTER = logging.Formatter()
PLAIN_RECORD = frozenset(vars(logging.makeLogRecord({}))) - {"stack_info"}


def _is_quiet(record: logging.LogRecord) -> bool:
    # A failure's traceback comes from the tracer too, and that one is wanted.
    return record.name in QUIET_LOGGERS and (
        record.levelno < logging.WARNING or record.name == "celery.redirected"
    )


@contextlib.contextmanager
def captured(log: AttemptLog) -> Iterator[None]:
    out, err = sys.stdout, sys.stderr
    stdout, stderr = LineWriter(log, "stdout", out), LineWriter(log, "stderr", err)
    handler = LogRecords(log)
    loggers = _end_points()
    for logger in loggers:
        logger.addHandler(handler)
    sys.stdout, sys.stderr = stdout, stderr
    try:
        with in_use(log.masked), _records_masked(log.masked):
            yield
    finally:
        sys.stdout, sys.stderr = out, err
        for logger in loggers:
            logger.removeHandler(handler)
        stdout.finish()
        stderr.finish()
        log.close()


@contextlib.contextmanager
def _records_masked(masked: Masker) -> Iterator[None]:
    mask = RecordMask(masked)
    handlers = _handlers() if masked else []
    for handler in handlers:
        handler.addFilter(mask)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(mask)


def _handlers() -> list[logging.Handler]:
    known = list(logging.Logger.manager.loggerDict.values())
    loggers = [logging.getLogger(), *(one for one in known if isinstance(one, logging.Logger))]
    return list({id(handler): handler for logger in loggers for handler in logger.handlers}.values())


def _end_points() -> list[logging.Logger]:
    """The root, and the loggers celery keeps from reaching it."""
    task_logger = logging.getLogger("celery.task")
    return [logging.getLogger()] + ([] if task_logger.propagate else [task_logger])


def secrets_in(target: dict[str, Any], extra: Iterable[str] = ()) -> list[str]:
    """Values of a target's env and headers whose names say that they are secret."""
    found = [text for text in extra if text]
    for part in ("env", "headers"):
        values = target.get(part)
        if isinstance(values, dict):
            for name, value in values.items():
                if _is_secret(str(name)):
                    found += [str(value), *str(value).split()]
    return found


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in SECRET_NAMES)
