"""The link to the platform over its database: what is asked is written down, and a scheduler carries it out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from .client import within
from .errors import PlatformAway, PlatformConflict, PlatformRefused, UnknownToPlatform
from .ledger import LedgerRefused, LedgerUnavailable
from .link import Answered, Asked
from .plan import Declared
from .sql import statements

T = TypeVar("T")
Row = dict[str, Any]

SQL = statements(Path(__file__).with_name("code_base.sql"))
APPLY_SECONDS = 30.0
LOOK_AGAIN = 0.2


class DatabaseLink:
    def __init__(self, dsn: str, tenant: str, pool: str, *, timeout: float = 5.0) -> None:
        self._dsn, self._names, self._timeout = dsn, {"tenant": tenant, "pool": pool}, timeout

    def __repr__(self) -> str:
        return f"DatabaseLink({self._names['tenant']!r}, {self._names['pool']!r})"

    def declared(self) -> list[Declared]:
        return self._within(lambda: self._declared(None))

    def declare(
        self,
        declarations: Sequence[dict[str, Any]],
        *,
        again: Sequence[str] = (),
        withdraw: Sequence[str] = (),
    ) -> list[Declared]:
        self._within(lambda: self._write(declarations, again, withdraw))
        names = [*(str(one["name"]) for one in declarations), *withdraw]
        until = time.monotonic() + APPLY_SECONDS
        while any(one.waiting for one in self._within(lambda: self._declared(names))):
            if time.monotonic() >= until:
                break
            time.sleep(LOOK_AGAIN)
        return self.declared()

    def request(self, asked: Asked) -> Answered:
        return self._within(lambda: self._request(asked))

    def requested(self, request_id: UUID) -> Answered:
        return self._within(lambda: self._answered(request_id))

    def cancel(self, request_id: UUID) -> Answered:
        def ask() -> Answered:
            self._rows("cancel_requested_run", id=request_id)
            return self._answered(request_id)

        return self._within(ask)

    def _declared(self, names: Sequence[str] | None) -> list[Declared]:
        return [
            Declared.read(row)
            for row in self._rows("declared", names=list(names) if names is not None else None)
        ]

    def _write(
        self, declarations: Sequence[dict[str, Any]], again: Sequence[str], withdraw: Sequence[str]
    ) -> None:
        from .postgres import PostgresLedger

        ledger = PostgresLedger(self._dsn)
        try:
            ledger.declare(self._names["pool"], self._names["tenant"], declarations)
        finally:
            ledger.close()
        self._rows("declare_again", names=list(again))
        self._rows("withdraw", names=list(withdraw))

    def _request(self, asked: Asked) -> Answered:
        from psycopg.types.json import Jsonb

        spec = dict(asked.spec)
        self._rows("request_run", id=uuid4(), key=asked.key, spec=Jsonb(spec), at=asked.at)
        found = self._rows("requested_run", id=None, key=asked.key)
        if not found:
            raise UnknownToPlatform(
                f"there is no tenant {self._names['tenant']!r} or no pool {self._names['pool']!r}",
                hint="create it in the admin, or name another",
            )
        if (found[0]["spec"], found[0]["at"]) != (spec, asked.at):
            raise PlatformConflict(
                f"the key {asked.key!r} was used for another request",
                code="idempotency_key_reused",
                field="key",
                hint="a new key for every request",
            )
        return _as_answer(found[0])

    def _answered(self, request_id: UUID) -> Answered:
        found = self._rows("requested_run", id=request_id, key=None)
        if not found:
            raise UnknownToPlatform(f"there is no request {request_id}")
        return _as_answer(found[0])

    def _rows(self, name: str, **values: Any) -> list[Row]:
        with self._connected() as connection:
            done = connection.execute(SQL[name], {**self._names, **values})
            return list(done.fetchall()) if done.description else []

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        """A connection a call: a web process asks seldom, and forks whenever it likes."""
        try:
            import psycopg
            from psycopg.rows import dict_row
        except ImportError:
            raise PlatformRefused(
                "the platform's database cannot be reached without psycopg",
                hint="pip install 'beatkeeper[db]'",
            ) from None
        with psycopg.connect(
            self._dsn,
            row_factory=dict_row,
            prepare_threshold=None,
            connect_timeout=max(2, int(self._timeout)),
            application_name="beatkeeper-code",
        ) as connection:
            yield connection

    def _within(self, call: Callable[[], T]) -> T:
        def carry_out() -> T:
            try:
                return call()
            except LedgerRefused as refusal:
                raise PlatformRefused(str(refusal)) from None
            except LedgerUnavailable as error:
                raise PlatformAway(f"the platform's database does not answer: {error}") from None
            except PlatformRefused:
                raise
            except Exception as error:
                if not _is_of_psycopg(error):
                    raise
                # libpq's own words may hold the address; its kind says enough.
                raise PlatformAway(
                    f"the platform's database does not answer: {type(error).__name__}"
                ) from None

        return within(self._timeout, carry_out, "the platform's database")


def _is_of_psycopg(error: Exception) -> bool:
    return any(kind.__module__.partition(".")[0] == "psycopg" for kind in type(error).__mro__)


def _as_answer(row: Mapping[str, Any]) -> Answered:
    return Answered(
        id=row["id"],
        state=row["state"],
        key=row["key"],
        at=row["at"],
        job_id=row["job"],
        run_id=row["run"],
        result=row["result"],
        error=row["error_line"] or "",
    )
