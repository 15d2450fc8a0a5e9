"""Read the database's clock, the only clock: an API host five minutes fast would refuse valid one-time jobs."""

from datetime import datetime

from django.db import connection

from scheduler_project.sdk.ids import whole_milliseconds


def database_now() -> datetime:
    """Return the present instant, in whole milliseconds. Call it after taking locks, since waiting takes time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [[now]] = cursor.fetchall()
    return whole_milliseconds(now)
