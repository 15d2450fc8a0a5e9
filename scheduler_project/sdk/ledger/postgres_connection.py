"""The worker's connection to PostgreSQL, which gives up on a server or a pooler that no longer answers."""

from __future__ import annotations

import secrets
import sys
import time
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.rows import dict_row

from .interface import ANSWER_SECONDS

T = TypeVar("T")
# A worker that is cut off or stops in the middle of a transaction loses its locks, or its gate would stand still.
SHORT_SILENCE = "SET LOCAL idle_in_transaction_session_timeout = '5s'"
# Also when only a part of a statement has reached the server. Set by a statement, because a pooler takes no options
# with a connection; there it holds for the pooler's own connections, and is right for them too.
SERVER_LOOKS = (
    "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;"
    " SET tcp_user_timeout = 10000"
)
AWAY = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    # The process was stopped while it held a gate, and the server ended the transaction.
    errors.IdleInTransactionSessionTimeout,
    # A standby that is about to be promoted, or a primary that is one no more.
    errors.ReadOnlySqlTransaction,
)

NOT_AS_PREPARED = (
    # It is not there: a pooler has changed sessions.
    errors.InvalidSqlStatementName,
    # Its name is taken, for the same reason.
    errors.DuplicatePreparedStatement,
    # A table was altered: "cached plan must not change result type".
    errors.FeatureNotSupported,
)

Connection = psycopg.Connection[dict[str, Any]]


class AnsweringConnection(psycopg.Connection[dict[str, Any]]):
    """Treat a server that does not answer in time as away.

    The kernel notices a server that is gone. A pooler or a balancer that lost its server says nothing for ever, and a
    heartbeat must not wait beyond the fence.
    """

    answer_seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], *options: Any, **named: Any) -> T:
        return super().wait(self._in_time(gen), *options, **named)

    def _in_time(self, request: PQGen[T]) -> PQGen[T]:
        until = time.monotonic() + self.answer_seconds
        try:
            needed = next(request)
            while True:
                ready = yield needed
                if not ready and time.monotonic() > until:
                    # Closed here: an orderly goodbye would wait as long again.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"no answer within {self.answer_seconds:g} s")
                needed = request.send(ready)
        except StopIteration as answer:
            return cast(T, answer.value)


def connect(dsn: str, answer_seconds: float) -> AnsweringConnection:
    """Open a connection that works behind a transaction pooler: without session state.

    A statement is prepared only where that is asked for. Its name is of this connection alone: behind a pooler that
    does not carry prepared statements, a session may have one of another client by any name.
    """
    connection = AnsweringConnection.connect(
        dsn,
        autocommit=True,
        row_factory=dict_row,
        # Not None, which would switch off what is prepared on request as well.
        prepare_threshold=sys.maxsize,
        connect_timeout=5,
        application_name="beatkeeper-worker",
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        tcp_user_timeout=10_000,
    )
    connection.answer_seconds = answer_seconds
    # Private to the driver. Its names are `_pg3_<number>`, so a random start keeps two clients apart.
    connection._prepared._prepared_idx = secrets.randbits(60)
    connection.execute(SERVER_LOOKS)
    return connection


def without_dsn(error: psycopg.Error) -> str:
    """Name an error without its text: libpq's texts name hosts and users; a server's error has a code."""
    if isinstance(error, errors.Error) and error.sqlstate:
        return f"{type(error).__name__} ({error.sqlstate})"
    return type(error).__name__
