"""Minutes of request limits that pass when a test says so, for the database and for what is held in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest.mock import patch

from django.db import connection

# Found before the function of the same name in pg_catalog.
STOPPED = """
CREATE SCHEMA stopped;
CREATE FUNCTION stopped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT current_setting('stopped.now')::timestamptz
$$;
SET LOCAL search_path = stopped, pg_catalog, public;
"""


class Minute:
    def __init__(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT date_trunc('minute', clock_timestamp())")
            self.begin = cursor.fetchone()[0]
            cursor.execute(STOPPED)
        self.pass_to(0)

    def pass_to(self, seconds: float) -> None:
        """Set both clocks to so long after the minute began in which the test did."""
        self.pass_in_database_to(seconds)
        self.seconds = seconds

    def pass_in_database_to(self, seconds: float) -> None:
        with connection.cursor() as cursor:
            at = (self.begin + timedelta(seconds=seconds)).isoformat()
            cursor.execute("SELECT set_config('stopped.now', %s, true)", [at])

    def boottime(self) -> float:
        return self.seconds


@contextmanager
def stopped_clocks() -> Iterator[Minute]:
    """Stop the clocks within the transaction of a test."""
    minute = Minute()
    with patch("jobs.access.limiter.boottime", minute.boottime):
        yield minute
