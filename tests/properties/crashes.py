"""A process that dies between two statements: the n-th one from now is never sent."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import psycopg

# Ends of transactions: what dies there dies before or after them, at the statement next to them.
BRACKETS = ("SAVEPOINT", "RELEASE", "ROLLBACK")


class Crash(BaseException):
    """Not an Exception: nobody may catch it and go on."""


@contextmanager
def crash_before(statement: int) -> Iterator[None]:
    left = [statement]
    execute = psycopg.Cursor.execute

    def dying(self: Any, query: Any, *args: Any, **options: Any) -> Any:
        if not str(query).lstrip().upper().startswith(BRACKETS):
            left[0] -= 1
            if left[0] == 0:
                raise Crash
        return execute(self, query, *args, **options)

    with patch.object(psycopg.Cursor, "execute", dying):
        yield
