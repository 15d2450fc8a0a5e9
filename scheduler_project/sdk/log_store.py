"""Where the lines of a run go: never into the database (which keeps a pointer), and readable while it runs.

A running attempt writes plain JSON lines to a file of its own. When it ends the file becomes one gzip
member at the end of an object that holds the attempts of one tenant, worker and hour: an object per attempt
would be the store's limit long before the bytes are. A member can be read alone, the object as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

from .outcomes import LogPointer

OBJECT_NAME = re.compile(r"logs/[\w%.~-]+/\d{4}/\d\d/\d\d/\d\d/[0-9a-f-]{36}\.jsonl\.gz")


class LogMissing(Exception):
    """The log is not in the store."""


# The group is for a web process that runs as another user of the same group.
FOLDER_MODE, FILE_MODE = 0o750, 0o640


class LogStore(Protocol):
    def open(self, run: UUID, claim_seq: int) -> IO[bytes]:
        """The file of a running attempt, for appending."""

    def seal(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID) -> LogPointer | None:
        """Copies a finished attempt's lines into their object; None: there are none.

        Done twice, they are there twice, and both pointers are good.
        """

    def discard(self, run: UUID, claim_seq: int) -> None:
        """Removes the open file, once the pointer is safe elsewhere."""

    def read(self, pointer: LogPointer) -> bytes: ...

    def read_open(self, run: UUID, claim_seq: int, offset: int = 0) -> bytes | None:
        """The lines so far; None: nothing is open."""


class PlatformLogStore(LogStore, Protocol):
    """Where the platform puts what workers bring that cannot reach the store themselves."""

    def append(self, run: UUID, claim_seq: int, offset: int, lines: bytes) -> int:
        """More of a running attempt's lines, from the offset on. Returns how far they reach now: who has lines
        beyond that goes on there."""

    def keep(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID, member: bytes) -> LogPointer:
        """A finished attempt's lines, sealed by its worker. Brought twice, they are there once."""

    def kept(self, run: UUID, claim_seq: int) -> LogPointer | None:
        """What `keep` answered, until it is discarded."""


class FolderLogStore:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._open_folder = root / "open"

    def open(self, run: UUID, claim_seq: int) -> IO[bytes]:
        self._make_folder(self._open_folder)
        return open(self._open_path(run, claim_seq), "ab", buffering=0, opener=_for_owner_and_group)

    def seal(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID) -> LogPointer | None:
        try:
            lines = self._open_path(run, claim_seq).read_bytes()
        except FileNotFoundError:
            return None
        if not lines:
            return None
        name = object_name(tenant, incarnation, datetime.now(timezone.utc))
        path = self.root / name
        self._make_folder(path.parent)
        offset, length = _append(path, gzip.compress(lines, 6))
        return LogPointer(name, offset, length)

    def discard(self, run: UUID, claim_seq: int) -> None:
        for path in (self._open_path(run, claim_seq), self._note_path(run, claim_seq)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def append(self, run: UUID, claim_seq: int, offset: int, lines: bytes) -> int:
        with self._locked(self._open_path(run, claim_seq)) as file:
            size = file.seek(0, os.SEEK_END)
            if offset <= size:
                file.write(lines[size - offset :])
            return file.tell()

    def keep(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID, member: bytes) -> LogPointer:
        with self._locked(self._note_path(run, claim_seq)) as note:
            if noted := note.read():
                return LogPointer(**json.loads(noted))
            name = object_name(tenant, incarnation, datetime.now(timezone.utc))
            path = self.root / name
            self._make_folder(path.parent)
            pointer = LogPointer(name, *_append(path, member))
            note.write(json.dumps(asdict(pointer)).encode())
            return pointer

    def kept(self, run: UUID, claim_seq: int) -> LogPointer | None:
        try:
            noted = self._note_path(run, claim_seq).read_bytes()
        except FileNotFoundError:
            return None
        return LogPointer(**json.loads(noted)) if noted else None

    def read(self, pointer: LogPointer) -> bytes:
        if not OBJECT_NAME.fullmatch(pointer.object) or ".." in pointer.object:
            raise LogMissing(f"{pointer.object!r} is no name of a log object")
        try:
            with open(self.root / pointer.object, "rb") as file:
                file.seek(pointer.offset)
                member = file.read(pointer.length)
            return gzip.decompress(member)
        except (OSError, EOFError) as error:
            raise LogMissing(f"{pointer.object} at {pointer.offset} cannot be read") from error

    def read_open(self, run: UUID, claim_seq: int, offset: int = 0) -> bytes | None:
        try:
            with open(self._open_path(run, claim_seq), "rb") as file:
                file.seek(offset)
                return file.read()
        except FileNotFoundError:
            return None

    def _make_folder(self, folder: Path) -> None:
        """Others, such as the user that commands run as, may not even look inside."""
        missing = [
            step for step in (folder, *folder.parents) if step == self.root or self.root in step.parents
        ]
        if not self.root.exists():
            self.root.parent.mkdir(parents=True, exist_ok=True)
        for step in reversed(missing):
            step.mkdir(mode=FOLDER_MODE, exist_ok=True)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[IO[bytes]]:
        """One writer at a time, also of several web processes."""
        self._make_folder(path.parent)
        with open(path, "a+b", buffering=0, opener=_for_owner_and_group) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file

    def _open_path(self, run: UUID, claim_seq: int) -> Path:
        return self._open_folder / f"{UUID(str(run))}.{int(claim_seq)}.jsonl"

    def _note_path(self, run: UUID, claim_seq: int) -> Path:
        return self._open_path(run, claim_seq).with_suffix(".kept")


def log_store(url: str) -> FolderLogStore:
    if folder := folder_of(url):
        return FolderLogStore(Path(folder))
    raise ValueError(f"The log store {urlsplit(url).scheme!r} is not known: use file:///an/absolute/folder")


def folder_of(url: str) -> str:
    """Empty: it is no folder's."""
    parts = urlsplit(url)
    is_folder = parts.scheme == "file" and parts.path.startswith("/") and not parts.netloc
    return unquote(parts.path) if is_folder else ""


def object_name(tenant: str, incarnation: UUID, at: datetime) -> str:
    folder = quote(tenant, safe="").replace(".", "%2E")
    return f"logs/{folder}/{at:%Y/%m/%d/%H}/{incarnation}.jsonl.gz"


def _for_owner_and_group(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _append(path: Path, member: bytes) -> tuple[int, int]:
    with open(path, "ab", buffering=0, opener=_for_owner_and_group) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        offset = file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(member):
                written += file.write(member[written:])
        except OSError:
            # Half a member would make every later one of the object unreadable in one stream.
            file.truncate(offset)
            raise
        fcntl.flock(file, fcntl.LOCK_UN)
        os.fdatasync(file.fileno())
    return offset, len(member)
