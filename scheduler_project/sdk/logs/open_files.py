"""Write the open files of one attempt: the beginning of its log, and a ring of small files for its end.

Of a log that grows beyond its size the first four fifths and the last fifth are kept. Lines are numbered, so what is
missing between them can be counted. The child that executes the attempt writes, and fsyncs nothing: a kill of it loses
no line that was complete.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import IO
from uuid import UUID

from .entry import entry
from .store import LogStore, part_name

MAX_BYTES = 10 * 1024 * 1024
# So many files of the ring are full at any time; one more is being written.
TAIL_FILES = 4


class OpenFiles:
    """Not for several threads at once."""

    def __init__(self, store: LogStore, run: UUID, claim_seq: int) -> None:
        self._store, self._run, self._claim_seq = store, run, claim_seq
        self._file: IO[bytes] | None = None
        self._size = 0
        self._most = MAX_BYTES * 4 // 5
        self._lines = self._bytes = 0
        # Names of the full files of the ring, oldest first.
        self._ring: deque[str] = deque()
        self._part = ""
        # Lines that could not be written since the last one that was, and why.
        self._failed = 0
        self._failure = ""

    @property
    def empty(self) -> bool:
        return self._file is None

    def write(self, line_of: Callable[[int], bytes]) -> None:
        """Write a line by its number. One that cannot be written is counted, and a later line says so."""
        if self._failed and not self._write_failures():
            self._fail()
            return
        self._put(line_of(self._lines + 1))

    def close(self) -> None:
        if self._failed:
            self._write_failures()
        if self._file is not None:
            self._file.close()

    def _write_failures(self) -> bool:
        lines = "1 line" if self._failed == 1 else f"{self._failed} lines"
        text = f"{lines} could not be written here: {self._failure}."
        failed, self._failed = self._failed, 0
        # Numbered as the last of those that are missing.
        written = self._put(entry(self._lines, "beatkeeper", text, "ERROR", "", None), counts=False)
        if not written:
            self._failed = failed
        return written

    def _put(self, line: bytes, *, counts: bool = True) -> bool:
        try:
            if self._file is None:
                self._file = self._store.open(self._run, self._claim_seq)
            elif self._size + len(line) > self._most:
                self._next_part()
            _write_whole(self._file, line)
        except OSError as error:
            self._failure = os.strerror(error.errno) if error.errno else type(error).__name__
            if counts:
                self._fail()
            return False
        self._size += len(line)
        self._bytes += len(line)
        self._lines += counts
        return True

    def _fail(self) -> None:
        self._lines += 1
        self._failed += 1

    def _next_part(self) -> None:
        """Continue in a new file of the ring, and drop the oldest. Its name says what was written before it."""
        assert self._file is not None  # noqa: S101 - the first file comes before
        part = part_name(self._lines, self._bytes)
        file = self._store.open(self._run, self._claim_seq, part)
        self._file.close()
        self._file, self._size, self._most = file, 0, MAX_BYTES // 5 // (TAIL_FILES + 1)
        if self._part:
            self._ring.append(self._part)
        self._part = part
        while len(self._ring) > TAIL_FILES:
            self._store.drop_part(self._run, self._claim_seq, self._ring.popleft())


def _write_whole(file: IO[bytes], line: bytes) -> None:
    """Write the line whole or not at all: a disk that fills up takes the beginning of it."""
    written = 0
    try:
        while written < len(line):
            written += file.write(line[written:])
    except OSError:
        if written:
            file.truncate(os.fstat(file.fileno()).st_size - written)
        raise
