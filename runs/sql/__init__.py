"""Run named statements: on a session of one's own, or on Django's connection within its transaction."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
from django.db import connection as django_connection
from psycopg.rows import dict_row, tuple_row

from scheduler_project.sdk.host.database import SQL as HOST
from scheduler_project.sdk.ledger.arrays import array as array
from scheduler_project.sdk.ledger.arrays import quoted as quoted
from scheduler_project.sdk.ledger.postgres import FRAGMENTS
from scheduler_project.sdk.ledger.postgres import SQL as LEDGER
from scheduler_project.sdk.sql import statements

SQL = dict(statements(FRAGMENTS, *sorted(Path(__file__).parent.glob("*.sql"))))
# Those that the worker's ledger and the scheduler share, and one of code that requests runs.
SHARED = ("end_attempts", "release_gated", "release_waiting", "note_breaker", "release_broken")
SQL |= {name: LEDGER[name] for name in SHARED}
SQL["requested_run"] = HOST["requested_run"]

Connection = psycopg.Connection[Any]
Row = tuple[Any, ...]


def rows(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> list[Row]:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(SQL[name], values).fetchall()


def records(connection: Connection, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows by the names of their columns."""
    with psycopg.Cursor(connection, row_factory=dict_row) as cursor:
        return cursor.execute(SQL[name], values).fetchall()


def change(connection: Connection, name: str, values: Mapping[str, Any] | None = None) -> int:
    """Return how many rows the statement changed."""
    with psycopg.Cursor(connection) as cursor:
        return cursor.execute(SQL[name], values).rowcount


def fetch(name: str, **values: Any) -> list[dict[str, Any]]:
    """Run a statement on Django's connection; return its rows by the names of their columns."""
    with django_connection.cursor() as cursor:
        cursor.execute(SQL[name], values)
        columns = [column.name for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def django_session() -> Connection:
    """Return the connection below Django's, for what also runs on a session of its own."""
    django_connection.ensure_connection()
    session: Connection = django_connection.connection
    return session


def hexed(identity: UUID) -> str:
    return f"{identity.int:032x}"


instant = datetime.isoformat
