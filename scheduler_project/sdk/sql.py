"""Read named statements, and the fragments that they share, from .sql files.

`-- name: claim` begins a statement; the comment below it states its purpose. `-- fragment: living_worker(worker, now)`
begins a piece that others include with arguments of their own: `{{living_worker(worker, clock_timestamp())}}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

HEADING = re.compile(r"^-- (name|fragment): (\w+)(?:\(([^)\n]*)\))?\n", re.MULTILINE)
INCLUDED = re.compile(r"\{\{(\w+)(?:\((.*?)\))?\}\}", re.DOTALL)
COMMENT = re.compile(r"^\s*--[^\n]*\n", re.MULTILINE)


# Parameters and text.
Fragment = tuple[list[str], str]


@lru_cache
def statements(*paths: Path) -> dict[str, str]:
    """Return all statements of these files with the fragments of all of them filled in.

    A name that is used twice or that nobody defines is an error.
    """
    found: dict[str, str] = {}
    fragments: dict[str, Fragment] = {}
    for path in paths:
        pieces = HEADING.split(path.read_text(encoding="utf-8"))[1:]
        for kind, name, parameters, text in zip(*(iter(pieces),) * 4, strict=True):
            if name in found or name in fragments:
                raise ValueError(f"{path.name} defines {name} again")
            if kind == "name":
                found[name] = text.strip().rstrip(";")
            else:
                fragments[name] = _split(parameters), COMMENT.sub("", text).strip()
    return {name: _expand(text, fragments, {}) for name, text in found.items()}


def _expand(text: str, fragments: Mapping[str, Fragment], values: Mapping[str, str]) -> str:
    def piece(match: re.Match[str]) -> str:
        name, given = match.groups()
        if name in values:
            return values[name]
        if name not in fragments:
            raise ValueError(f"there is no fragment {name}")
        arguments = [_expand(argument, fragments, values) for argument in _split(given)]
        parameters, body = fragments[name]
        if len(arguments) != len(parameters):
            raise ValueError(f"{name} takes {', '.join(parameters) or 'nothing'}; given: {given}")
        return _expand(body, fragments, dict(zip(parameters, arguments, strict=True)))

    return INCLUDED.sub(piece, text)


def _split(arguments: str | None) -> list[str]:
    """Split at the commas that are within no parentheses."""
    pieces, depth = [""], 0
    for character in arguments or "":
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += character
    return [piece.strip() for piece in pieces if piece.strip()]
