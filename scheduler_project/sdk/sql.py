"""Reads statements by name from a .sql file: `-- name: claim` above each, a line of purpose below it."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


@lru_cache
def statements(path: Path) -> dict[str, str]:
    """All statements of a file. A name used twice is refused."""
    pieces = NAME.split(path.read_text(encoding="utf-8"))[1:]
    found: dict[str, str] = {}
    for name, text in zip(pieces[::2], pieces[1::2], strict=True):
        if name in found:
            raise ValueError(f"{path.name} defines {name} twice")
        found[name] = text.strip().rstrip(";")
    return found
