"""Runs the hot statements of sql/ by name, on a scheduler's own session or inside a Django transaction."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from scheduler_project.sdk.postgres import SQL as LEDGER
from scheduler_project.sdk.sql import statements

FOLDER = Path(__file__).parent / "sql"
SQL = {
    name: text
    for subject in (
        "trigger",
        "dispatch",
        "rescue",
        "schedulers",
        "stops",
        "overlap",
        "catch_up",
        "celery_beat",
        "dead_letters",
    )
    for name, text in statements(FOLDER / f"{subject}.sql").items()
}
# One that scheduler and worker share.
SQL |= {name: LEDGER[name] for name in ("release_waiting", "note_breaker", "release_broken")}

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]


def rows(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> list[Row]:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(SQL[name], values).fetchall()


def change(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> int:
    """How many rows the statement changed."""
    with psycopg.Cursor(connection) as cursor:
        return cursor.execute(SQL[name], values).rowcount


def array(values: Iterable[Any], write: Callable[[Any], str] = str) -> str:
    """An array as PostgreSQL reads it, for batches: several times faster than the driver's own way."""
    return "{" + ",".join(["NULL" if value is None else write(value) for value in values]) + "}"


def hexed(identity: UUID) -> str:
    return f"{identity.int:032x}"


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def instant(at: datetime) -> str:
    return at.isoformat()
