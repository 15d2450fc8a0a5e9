"""Keep the lines of runs in a folder that workers and web processes share."""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import IO
from urllib.parse import quote
from uuid import UUID

from ..outcomes import LogPointer
from .store import LogMissing, joined

OBJECT_NAME = re.compile(r"logs/[\w%.~-]+/\d{4}/\d\d/\d\d/\d\d/[0-9a-f-]{36}\.jsonl\.gz")


# The group is for a web process that runs as another user of the same group.
FOLDER_MODE, FILE_MODE = 0o750, 0o640


class FolderLogStore:
    def __init__(self, root: Path) -> None:
        self.root = self.folder = root
        self._open_folder = root / "open"

    def __str__(self) -> str:
        return str(self.root)

    def check(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.root, prefix=".probe-") as probe:
            probe.write(b"can be written")
            probe.flush()

    def open(self, run: UUID, claim_seq: int, part: str = "") -> IO[bytes]:
        path = self._parts_folder(run, claim_seq) / part if part else self._open_path(run, claim_seq)
        self._make_folder(path.parent)
        return open(path, "ab", buffering=0, opener=_for_owner_and_group)

    def drop_part(self, run: UUID, claim_seq: int, part: str) -> None:
        (self._parts_folder(run, claim_seq) / part).unlink(missing_ok=True)

    def seal(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID) -> LogPointer | None:
        lines = self.read_whole(run, claim_seq)
        return self._add_member(tenant, incarnation, gzip.compress(lines, 6)) if lines else None

    def discard(self, run: UUID, claim_seq: int) -> None:
        # The parts first: without the file nobody would look for them.
        shutil.rmtree(self._parts_folder(run, claim_seq), ignore_errors=True)
        for path in (self._open_path(run, claim_seq), self._note_path(run, claim_seq)):
            path.unlink(missing_ok=True)

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
            pointer = self._add_member(tenant, incarnation, member)
            note.write(json.dumps(asdict(pointer)).encode())
            return pointer

    def _add_member(self, tenant: str, incarnation: UUID, member: bytes) -> LogPointer:
        name = object_name(tenant, incarnation, datetime.now(timezone.utc))
        # Every worker of a tenant and hour has an object of its own, but its children and its guard share it.
        with self._locked(self.root / name) as file:
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
        return LogPointer(name, offset, len(member))

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

    def read_whole(self, run: UUID, claim_seq: int) -> bytes | None:
        file = self.read_open(run, claim_seq)
        return None if file is None else joined(file, self._read_parts(run, claim_seq))

    def _read_parts(self, run: UUID, claim_seq: int) -> list[tuple[str, bytes]]:
        folder, parts = self._parts_folder(run, claim_seq), []
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            return []
        for name in names:
            # The writer drops the oldest.
            with contextlib.suppress(FileNotFoundError):
                parts.append((name, (folder / name).read_bytes()))
        return parts

    def _parts_folder(self, run: UUID, claim_seq: int) -> Path:
        return self._open_path(run, claim_seq).with_suffix(".parts")

    def _make_folder(self, folder: Path) -> None:
        """Create the folder with those above it, closed to others such as the user that commands run as."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for step in reversed((folder, *folder.parents)):
            if step.is_relative_to(self.root):
                step.mkdir(mode=FOLDER_MODE, exist_ok=True)

    @contextlib.contextmanager
    def _locked(self, path: Path) -> Iterator[IO[bytes]]:
        """Open the file for one writer at a time, also among several web processes."""
        self._make_folder(path.parent)
        with open(path, "a+b", buffering=0, opener=_for_owner_and_group) as file:
            # Released when the file is closed, also by a process that is killed.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            yield file

    def _open_path(self, run: UUID, claim_seq: int) -> Path:
        return self._open_folder / f"{UUID(str(run))}.{int(claim_seq)}.jsonl"

    def _note_path(self, run: UUID, claim_seq: int) -> Path:
        return self._open_path(run, claim_seq).with_suffix(".kept")


def object_name(tenant: str, incarnation: UUID, at: datetime) -> str:
    folder = quote(tenant, safe="").replace(".", "%2E")
    return f"logs/{folder}/{at:%Y/%m/%d/%H}/{incarnation}.jsonl.gz"


def _for_owner_and_group(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)
