"""Define the interface of a log store, and open one by its URL.

The database keeps a pointer only. A running attempt writes plain JSON lines to a file of its own, which can be read
meanwhile. When it ends the lines become one gzip member at the end of an object that holds the attempts of one tenant,
worker and hour: with an object per attempt a store would reach its limit of objects long before its limit of bytes.
A member can be read alone, and so can the object as a whole.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit
from uuid import UUID

from ..outcomes import LogPointer

SCHEMES = ("file",)
# Several lines of the greatest length.
MAX_LOOKED_AT = 1024 * 1024


class LogMissing(Exception):
    """The log is not in the store."""


class LogStore(Protocol):
    def open(self, run: UUID, claim_seq: int, part: str = "") -> IO[bytes]:
        """Open the file of a running attempt for appending, or a part that continues it (`part_name`)."""

    def drop_part(self, run: UUID, claim_seq: int, part: str) -> None:
        """Remove a part: the end of a long log is kept, and its beginning, but not the middle."""

    def seal(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID) -> LogPointer | None:
        """Copy a finished attempt's lines into their object; None: there are none.

        Sealing twice stores the lines twice, and both pointers are good.
        """

    def discard(self, run: UUID, claim_seq: int) -> None:
        """Remove the open file, once the pointer is safe elsewhere."""

    def read(self, pointer: LogPointer) -> bytes: ...

    def read_open(self, run: UUID, claim_seq: int, offset: int = 0) -> bytes | None:
        """Return the lines of the file so far, without the parts; None: nothing is open."""

    def read_whole(self, run: UUID, claim_seq: int) -> bytes | None:
        """Return the lines of the file and of its parts, with a line that says what is missing between them."""


class PlatformLogStore(LogStore, Protocol):
    """Stores the platform's own logs, and those of workers that cannot reach the store themselves."""

    @property
    def folder(self) -> Path | None:
        """The folder of this machine that holds the lines, which commands must not see; None: there is none."""

    def check(self) -> None:
        """Write to the store and remove it again; raise OSError if that fails."""

    def append(self, run: UUID, claim_seq: int, offset: int, lines: bytes) -> int:
        """Append lines of a running attempt, from the offset on, and return how far they reach now.

        A caller whose lines begin beyond that continues from the returned offset.
        """

    def keep(self, run: UUID, claim_seq: int, tenant: str, incarnation: UUID, member: bytes) -> LogPointer:
        """Store a finished attempt's lines, sealed by its worker. A repetition stores nothing."""

    def kept(self, run: UUID, claim_seq: int) -> LogPointer | None:
        """Return what `keep` answered, until it is discarded."""


def part_name(lines: int, size: int) -> str:
    """Name a part by the lines and bytes that were written before it."""
    return f"{lines:012}-{size:015}"


def joined(file: bytes, parts: Sequence[tuple[str, bytes]]) -> bytes:
    """Join the file of an attempt and its parts. A child that was killed may leave half a line at the end of each."""
    pieces = [_ended(file)]
    if parts:
        lines, size = map(int, parts[0][0].split("-"))
        if size > len(file):
            pieces.append(_gap(file, lines, size - len(file)))
    return b"".join([*pieces, *(_ended(lines) for _, lines in parts)])


def _ended(lines: bytes) -> bytes:
    return lines if not lines or lines.endswith(b"\n") else lines + b"\n"


def _gap(file: bytes, lines: int, size: int) -> bytes:
    """Return a line about those between the file and its parts. The lines are numbered, so they need not be counted."""
    last, at = _last_numbered(file)
    missing = f"{lines - last} lines of {size} bytes" if last is not None else f"Lines of {size} bytes"
    text = f"{missing} are missing here: of a long log the beginning and the end are kept."
    gap = {"n": lines, "t": at, "s": "beatkeeper", "l": "WARNING", "m": text}
    return json.dumps(gap).encode() + b"\n"


def _last_numbered(file: bytes) -> tuple[int | None, str]:
    """Return number and time of the last line that has both: a fork's have no number, and a kill leaves half a line."""
    for raw in reversed(file[-MAX_LOOKED_AT:].splitlines()):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            line = json.loads(raw)
            if line["n"] > 0:
                return int(line["n"]), str(line["t"])
    return None, ""


def open_log_store(url: str) -> PlatformLogStore:
    """Open the store that a URL names. Nothing is connected or created before it is used."""
    from .folder import FolderLogStore

    parts = urlsplit(url)
    if not url.startswith("file:") or parts.netloc or not parts.path.startswith("/"):
        raise ValueError(f"The log store {parts.scheme!r} is not known: use file:///an/absolute/folder")
    return FolderLogStore(Path(unquote(parts.path)))


def folder_of(url: str) -> str:
    """Return the folder of this machine where the store keeps its lines; empty: there is none."""
    try:
        return str(open_log_store(url).folder or "")
    except ValueError:
        return ""
