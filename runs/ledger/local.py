"""Run the worker's ledger over a connection that this process has already: the same statements, the same rules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import JsonbLoader

from scheduler_project.sdk.ledger.postgres import PostgresLedger
from scheduler_project.sdk.ledger.postgres_connection import Connection


class WorkerCursor(psycopg.Cursor[dict[str, Any]]):
    """Read rows as on a worker's own connection: Django's binds on this side and leaves JSON as text."""

    def __init__(self, connection: psycopg.Connection[Any], **_options: Any) -> None:
        super().__init__(connection, row_factory=dict_row)
        self.adapters.register_loader("jsonb", JsonbLoader)


class LocalLedger(PostgresLedger):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__("", prepares=False)
        self._given = connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Use the given connection; its owner handles errors."""
        with worker_rows(self._given) as connection:
            yield connection


@contextmanager
def worker_rows(connection: psycopg.Connection[Any]) -> Iterator[Connection]:
    """Have the connection return rows as a worker's own does."""
    before = connection.cursor_factory
    connection.cursor_factory = WorkerCursor
    try:
        yield connection
    finally:
        connection.cursor_factory = before
