"""Run the worker's ledger over a connection that this process has already: the same statements, the same rules."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import JsonbLoader

from scheduler_project.sdk.ledger.interface import Claim
from scheduler_project.sdk.ledger.postgres import PostgresLedger


class WorkerCursor(psycopg.Cursor[dict[str, Any]]):
    """Read rows as on a worker's own connection: Django's binds on this side and leaves JSON as text."""

    def __init__(self, connection: psycopg.Connection[Any], **_options: Any) -> None:
        super().__init__(connection, row_factory=dict_row)
        self.adapters.register_loader("jsonb", JsonbLoader)


class LocalLedger(PostgresLedger):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__("")
        self._given = connection

    def with_secrets(self, claim: Claim) -> Claim:
        """Return the claim with the secrets that its target and input refer to."""
        [found] = self._with_secrets([claim])
        return found

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        """Use the given connection; its owner handles errors."""
        before = self._given.cursor_factory
        self._given.cursor_factory = WorkerCursor
        try:
            yield self._given
        finally:
            self._given.cursor_factory = before
