"""Runs the statements of sql/queries.sql by name, on a scheduler's own session or inside a Django transaction."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from scheduler_project.sdk.sql import statements

SQL = statements(Path(__file__).parent / "sql" / "queries.sql")

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]


def rows(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> list[Row]:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(SQL[name], values).fetchall()


def change(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> int:
    """How many rows the statement changed."""
    with psycopg.Cursor(connection) as cursor:
        return cursor.execute(SQL[name], values).rowcount
