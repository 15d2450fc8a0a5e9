"""Write the open files of one attempt: one for the beginning of its log, and small ones for its end.

Of a log that grows beyond its size the first four fifths and the last fifth are kept. Lines are numbered, so what is
missing between them can be counted. The child that executes the attempt writes, and fsyncs nothing: a kill of it loses
no line that was complete.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from typing import IO
from uuid import UUID

from .entry import entry
from .store import LogStore, part_name

logger = logging.getLogger(__name__)

MAX_BYTES = 10 * 1024 * 1024
# So many parts are full at any time; one more is being written.
FULL_PARTS = 4
# Also what a file says that was closed meanwhile, as by a handler of a signal.
FAILURES = (OSError, ValueError)


class OpenFiles:
    """Not for several threads at once. A body may be interrupted at any line, and may fork."""

    def __init__(self, store: LogStore, run: UUID, claim_seq: int) -> None:
        self._store, self._run, self._claim_seq = store, run, claim_seq
        self._pid = os.getpid()
        self._file: IO[bytes] | None = None
        self._size = 0
        self._most = MAX_BYTES * 4 // 5
        self._lines = self._bytes = 0
        # Names of the parts, oldest first.
        self._parts: deque[str] = deque()
        # Lines that could not be written since the last one that was, and why.
        self._failed = 0
        self._failure = ""

    @property
    def empty(self) -> bool:
        return self._file is None

    def write(self, line_of: Callable[[int], bytes]) -> None:
        """Write a line by its number. One that cannot be written is counted, and a later line says so."""
        if os.getpid() != self._pid:
            self._write_of_fork(line_of(0))
        elif self._failed and not self._write_failures():
            self._lines += 1
            self._failed += 1
        else:
            # Before the write: who is interrupted between the two has counted a line too many, not one twice.
            self._lines += 1
            if not self._put(line_of(self._lines)):
                self._failed += 1

    def close(self) -> None:
        if self._failed and not self._write_failures():
            logger.warning(
                "%d lines of run %s could not be written to its log: %s",
                self._failed,
                self._run,
                self._failure,
            )
        if self._file is not None:
            self._file.close()

    def _write_failures(self) -> bool:
        lines = "1 line" if self._failed == 1 else f"{self._failed} lines"
        text = f"{lines} could not be written here: {self._failure}."
        # Numbered as the last of those that are missing.
        if not self._put(entry(self._lines, "beatkeeper", text, "ERROR")):
            return False
        self._failed = 0
        return True

    def _put(self, line: bytes) -> bool:
        try:
            if self._file is None:
                self._file = self._store.open(self._run, self._claim_seq)
            elif self._size + len(line) > self._most:
                self._next_part()
            _write_whole(self._file, line)
        except FAILURES as error:
            number = getattr(error, "errno", None)
            self._failure = os.strerror(number) if number else type(error).__name__
            return False
        self._size += len(line)
        self._bytes += len(line)
        return True

    def _write_of_fork(self, line: bytes) -> None:
        """Write a line without a number: the process that opened the files counts, and begins the parts."""
        try:
            if self._file is None:
                self._file = self._store.open(self._run, self._claim_seq)
            _write_whole(self._file, line)
        except FAILURES:
            logger.debug("A line of a process that the body started is lost", exc_info=True)

    def _next_part(self) -> None:
        """Continue in a new part, and drop the oldest. Its name says what was written before it."""
        part, full = part_name(self._lines - 1, self._bytes), self._file
        self._file = self._store.open(self._run, self._claim_seq, part)
        self._size, self._most = 0, MAX_BYTES // 5 // (FULL_PARTS + 1)
        self._parts.append(part)
        if full is not None:
            full.close()
        while len(self._parts) > FULL_PARTS + 1:
            self._store.drop_part(self._run, self._claim_seq, self._parts.popleft())


def _write_whole(file: IO[bytes], line: bytes) -> None:
    """Write a line, or nothing of it: a disk that becomes full takes the first bytes of one."""
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        if written:
            file.truncate(os.fstat(file.fileno()).st_size - written)
        raise
