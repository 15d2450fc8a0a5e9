"""Write arrays as PostgreSQL reads them: for batches several times faster than the driver's own way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any


def array(values: Iterable[Any], write: Callable[[Any], str] = str) -> str:
    return "{" + ",".join(["NULL" if value is None else write(value) for value in values]) + "}"


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def with_lists_as_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """Write the lists among the values of a statement, which casts them.

    The driver derives a list's type from its values, so a session would hold one prepared statement for each type.
    """
    return {
        name: array(value, _as_element) if isinstance(value, list) else value
        for name, value in values.items()
    }


def _as_element(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else str(value)
