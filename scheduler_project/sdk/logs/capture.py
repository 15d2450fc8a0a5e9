"""Capture what a body prints and logs, as JSON lines in the open file of its attempt.

A line is written to the file when it is complete, so that a follower sees it at once and a kill loses none. Secrets are
masked in it, and also in what goes on from there: prints to the worker's own output, and log records to the handlers of
the process.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TextIO
from uuid import UUID

from ..secret_values.masking import Masker, in_use
from .entry import MAX_LINE, MAX_NAME, PLAIN_RECORD, Extra, entry, extra_of
from .open_files import OpenFiles
from .store import LogStore

# Celery's messages about its own work would be in every log, and redirected prints twice.
QUIET_LOGGERS = ("celery.redirected", "celery.app.trace", "celery.worker.strategy")


class AttemptLog:
    """The log of one attempt. The file is created with the first line: no output, no file."""

    def __init__(self, store: LogStore, run: UUID, claim_seq: int, *, mask: Iterable[str] = ()) -> None:
        self.masked = Masker(mask)
        self._file = OpenFiles(store, run, claim_seq)
        # Reentrant: a signal handler may log while a line is written.
        self._lock = threading.RLock()
        self._closed = False

    def write(self, stream: str, text: str, level: str = "", logger: str = "", extra: Extra = None) -> None:
        """Write a line, or several if it is longer than a line may be."""
        text = self.masked.without_beginning(self.masked(text))
        with self._lock:
            for begin in range(0, max(1, len(text)), MAX_LINE):
                if self._closed:
                    return
                part = text[begin : begin + MAX_LINE]
                self._file.write(
                    partial(entry, stream=stream, text=part, level=level, logger=logger, extra=extra)
                )
                extra = None

    @property
    def empty(self) -> bool:
        return self._file.empty

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._file.close()


class LineWriter(io.TextIOBase):
    """Replace sys.stdout or sys.stderr: write lines to the log, and pass everything on.

    A secret may come in several writes, so only whole lines are passed on while there are secrets.
    """

    encoding = "utf-8"

    def __init__(self, log: AttemptLog, stream: str, original: TextIO) -> None:
        self._log, self._stream, self._original = log, stream, original
        self._rest = ""
        # Threads must not tear lines; reentrant as above.
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._put(line, "\n")
            if len(self._rest) >= MAX_LINE:
                self._cut(self._log.masked.cut(self._rest))
        if not self._log.masked:
            with contextlib.suppress(Exception):
                self._original.write(text)
        return len(text)

    def finish(self) -> None:
        with self._lock:
            self._cut(len(self._rest))

    def _cut(self, at: int) -> None:
        """Write the beginning of a line that has no end yet."""
        line, self._rest = self._rest[:at], self._rest[at:]
        if line:
            self._put(line)

    def _put(self, line: str, end: str = "") -> None:
        self._log.write(self._stream, self._log.masked.shortened(line, MAX_LINE))
        if self._log.masked:
            with contextlib.suppress(Exception):
                self._original.write(self._log.masked(line + end))

    def flush(self) -> None:
        with contextlib.suppress(Exception):
            self._original.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()


class LogRecords(logging.Handler):
    def __init__(self, log: AttemptLog) -> None:
        super().__init__()
        self._log = log
        self._busy = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        if _is_quiet(record) or getattr(self._busy, "now", False):
            return
        self._busy.now = True
        try:
            masked = self._log.masked
            name, extra = masked.shortened(record.name, MAX_NAME), extra_of(record, masked)
            self._log.write("log", self.format(record), record.levelname, name, extra)
        except Exception:
            self.handleError(record)
        finally:
            self._busy.now = False


class RecordMask(logging.Filter):
    """Mask a record before the first handler of the process writes it."""

    def __init__(self, masked: Masker) -> None:
        super().__init__()
        self._masked = masked

    def filter(self, record: logging.LogRecord) -> bool:
        with contextlib.suppress(Exception):
            message = record.getMessage()
            if self._masked(message) != message:
                record.msg, record.args = self._masked(message), None
            if record.exc_info and not record.exc_text:
                text = FORMATTER.formatException(record.exc_info)
                if self._masked(text) != text:
                    # Formatters get the text alone: the exception itself holds the secret.
                    record.exc_info, record.exc_text = None, self._masked(text)
            for name, value in vars(record).items():
                if name not in PLAIN_RECORD:
                    record.__dict__[name] = self._masked.value(value)
        return True


FORMATTER = logging.Formatter()


def _is_quiet(record: logging.LogRecord) -> bool:
    # A failure's traceback comes from the tracer too, and belongs into the log.
    return record.name in QUIET_LOGGERS and (
        record.levelno < logging.WARNING or record.name == "celery.redirected"
    )


@contextlib.contextmanager
def captured(log: AttemptLog) -> Iterator[None]:
    stdout, stderr = LineWriter(log, "stdout", sys.stdout), LineWriter(log, "stderr", sys.stderr)
    handler, mask = LogRecords(log), RecordMask(log.masked)
    # Celery keeps its task logger from reaching the root logger.
    task_logger = logging.getLogger("celery.task")
    loggers = [logging.getLogger()] + ([] if task_logger.propagate else [task_logger])
    with contextlib.ExitStack() as at_end:
        for end in (log.close, stderr.finish, stdout.finish):
            at_end.callback(end)
        for logger in loggers:
            at_end.callback(logger.removeHandler, handler)
            logger.addHandler(handler)
        at_end.enter_context(contextlib.redirect_stderr(stderr))
        at_end.enter_context(contextlib.redirect_stdout(stdout))
        at_end.enter_context(in_use(log.masked))
        for writer in _handlers() if log.masked else []:
            at_end.callback(writer.removeFilter, mask)
            writer.addFilter(mask)
        yield


def _handlers() -> list[logging.Handler]:
    known = list(logging.Logger.manager.loggerDict.values())
    loggers = [logging.getLogger(), *(one for one in known if isinstance(one, logging.Logger))]
    return list({id(handler): handler for logger in loggers for handler in logger.handlers}.values())
