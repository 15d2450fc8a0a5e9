"""The database's clock is the only clock: an API host five minutes fast would refuse valid one-time jobs."""

from datetime import datetime

from django.db import connection

from scheduler_project.sdk.ids import whole_milliseconds


def database_now() -> datetime:
    """The present instant, in whole milliseconds. Read it after the locks are taken: waiting takes time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        row = cursor.fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM has one row
    now: datetime = row[0]
    return whole_milliseconds(now)
