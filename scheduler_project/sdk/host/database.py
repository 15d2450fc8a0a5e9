"""The link to the platform over its database: requests are written there, and a scheduler carries them out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from ..declarations.plan import DeclaredJob
from ..errors import (
    LedgerRefused,
    LedgerUnavailable,
    PlatformAway,
    PlatformConflict,
    PlatformRefused,
    UnknownToPlatform,
)
from ..sql import statements
from ..transport.http import within
from .interface import Declarations, NewRunRequest, RequestStatus

T = TypeVar("T")
Row = dict[str, Any]

SQL = statements(Path(__file__).with_name("database.sql"))
APPLY_SECONDS = 30.0
POLL_SECONDS = 0.2


class DatabaseLink:
    def __init__(self, dsn: str, tenant: str, pool: str, *, timeout: float = 5.0) -> None:
        self._dsn, self._names, self._timeout = dsn, {"tenant": tenant, "pool": pool}, timeout

    def __repr__(self) -> str:
        return f"DatabaseLink({self._names['tenant']!r}, {self._names['pool']!r})"

    def declared(self) -> list[DeclaredJob]:
        return self._within(lambda: self._declared(None))

    def declare(
        self, declarations: Declarations, *, again: Sequence[str] = (), withdraw: Sequence[str] = ()
    ) -> list[DeclaredJob]:
        self._within(lambda: self._write(declarations, again, withdraw))
        names = [*(str(one["name"]) for one in declarations), *withdraw]
        until = time.monotonic() + APPLY_SECONDS
        while any(one.waiting for one in self._within(lambda: self._declared(names))):
            if time.monotonic() >= until:
                break
            time.sleep(POLL_SECONDS)
        return self.declared()

    def request(self, new: NewRunRequest) -> RequestStatus:
        return self._within(lambda: self._request(new))

    def requested(self, request_id: UUID) -> RequestStatus:
        return self._within(lambda: self._status(request_id))

    def cancel(self, request_id: UUID) -> RequestStatus:
        def cancel() -> RequestStatus:
            self._rows("cancel_requested_run", id=request_id)
            return self._status(request_id)

        return self._within(cancel)

    def _declared(self, names: list[str] | None) -> list[DeclaredJob]:
        return [DeclaredJob.read(row) for row in self._rows("declared", names=names)]

    def _write(self, declarations: Declarations, again: Sequence[str], withdraw: Sequence[str]) -> None:
        from ..ledger.postgres import PostgresLedger

        with closing(PostgresLedger(self._dsn)) as ledger:
            ledger.declare(self._names["pool"], self._names["tenant"], declarations)
        self._rows("declare_again", names=list(again))
        self._rows("withdraw", names=list(withdraw))

    def _request(self, new: NewRunRequest) -> RequestStatus:
        from psycopg.types.json import Jsonb

        spec = dict(new.spec)
        self._rows("request_run", id=uuid4(), key=new.key, spec=Jsonb(spec), at=new.at)
        found = self._rows("requested_run", id=None, key=new.key)
        if not found:
            raise UnknownToPlatform(
                f"there is no tenant {self._names['tenant']!r} or no pool {self._names['pool']!r}",
                hint="create it in the admin, or name another",
            )
        if (found[0]["spec"], found[0]["at"]) != (spec, new.at):
            raise PlatformConflict(
                f"the key {new.key!r} was used for another request",
                code="idempotency_key_reused",
                field="key",
                hint="a new key for every request",
            )
        return RequestStatus.read(found[0])

    def _status(self, request_id: UUID) -> RequestStatus:
        found = self._rows("requested_run", id=request_id, key=None)
        if not found:
            raise UnknownToPlatform(f"there is no request {request_id}")
        return RequestStatus.read(found[0])

    def _rows(self, name: str, **values: Any) -> list[Row]:
        """Connect for one statement: a web process calls seldom, and may fork at any time."""
        import psycopg
        from psycopg.rows import dict_row

        with psycopg.connect(
            self._dsn,
            row_factory=dict_row,
            prepare_threshold=None,
            connect_timeout=max(2, int(self._timeout)),
            application_name="beatkeeper-code",
        ) as connection:
            done = connection.execute(SQL[name], {**self._names, **values})
            return done.fetchall() if done.description else []

    def _within(self, call: Callable[[], T]) -> T:
        def carry_out() -> T:
            try:
                return call()
            except ImportError:
                raise PlatformRefused(
                    "the platform's database cannot be reached without psycopg",
                    hint="pip install 'beatkeeper[db]'",
                ) from None
            except LedgerRefused as refusal:
                raise PlatformRefused(str(refusal)) from None
            except LedgerUnavailable as error:
                raise PlatformAway(f"the platform's database does not answer: {error}") from None
            except Exception as error:
                if all(kind.__module__.partition(".")[0] != "psycopg" for kind in type(error).__mro__):
                    raise
                # libpq's message may hold the address; the error's class says enough.
                raise PlatformAway(
                    f"the platform's database does not answer: {type(error).__name__}"
                ) from None

        return within(self._timeout, carry_out, "the platform's database")
