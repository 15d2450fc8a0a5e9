"""Periodic tasks written straight into their tables, as somebody else's code may do."""

from datetime import datetime, timedelta
from typing import Any

from tests.runs.celery_beat.host import HostProject

HOUR = timedelta(hours=1)


def now(host: HostProject) -> datetime:
    (row,) = host.rows("SELECT clock_timestamp() AS now")
    at: datetime = row["now"]
    return at


def interval(host: HostProject, every: int = 3600, period: str = "seconds") -> int:
    statement = "INSERT INTO django_celery_beat_intervalschedule (every, period) VALUES (%s, %s) RETURNING id"
    (row,) = host.rows(statement, [every, period])
    return int(row["id"])


def crontab(host: HostProject, minute: str, hour: str, day: str = "*", month: str = "*") -> int:
    statement = (
        "INSERT INTO django_celery_beat_crontabschedule (minute, hour, day_of_month, month_of_year, day_of_week,"
        " timezone) VALUES (%s, %s, %s, %s, '*', 'UTC') RETURNING id"
    )
    (row,) = host.rows(statement, [minute, hour, day, month])
    return int(row["id"])


def clocked(host: HostProject, at: datetime) -> int:
    statement = "INSERT INTO django_celery_beat_clockedschedule (clocked_time) VALUES (%s) RETURNING id"
    (row,) = host.rows(statement, [at])
    return int(row["id"])


def add(host: HostProject, name: str, **fields: Any) -> int:
    """Of each hour, due an hour ago unless the fields say otherwise."""
    at = now(host)
    given = {
        "name": name,
        "task": "their.witness",
        "args": "[]",
        "kwargs": "{}",
        "headers": "{}",
        "enabled": True,
        "one_off": False,
        "description": "",
        "total_run_count": 0,
        "date_changed": at - 2 * HOUR,
        "last_run_at": at - HOUR - timedelta(seconds=1),
        **fields,
    }
    if not any(given.get(f"{kind}_id") for kind in ("interval", "crontab", "solar", "clocked")):
        given["interval_id"] = interval(host)
    names, places = ", ".join(given), ", ".join(f"%({column})s" for column in given)
    statement = f"INSERT INTO django_celery_beat_periodictask ({names}) VALUES ({places}) RETURNING id"  # noqa: S608
    (row,) = host.rows(statement, given)
    return int(row["id"])
