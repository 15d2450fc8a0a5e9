"""Make the daily partitions of the run and attempt tables ahead of time, and watch them; there is no default partition.

A run's id begins with its time, so the partition that takes it is known before it is written, and the database refuses
a time without a partition, instead of putting it where an archive would lose it.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import Any, Protocol

from django.db import migrations

from scheduler_project.sdk.ids import id_range

TABLES = ("beatkeeper_run", "beatkeeper_attempt")
# Leaves room on the page of a run for the version of its row that ends it: see decision 17. Attempts are never updated.
STORAGE = {"beatkeeper_run": " WITH (fillfactor = 45)"}
DAY = timedelta(days=1)
ALARM_BELOW_DAYS = 7


class Executes(Protocol):
    def execute(self, query: str, params: Any = ..., /) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class CreatePartitionedModel(migrations.CreateModel):
    """Creates a table with PARTITION BY, which Django cannot express; the rest comes from the model."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        plain = schema_editor.sql_create_table
        schema_editor.sql_create_table = plain + " PARTITION BY RANGE (id)"
        try:
            super().database_forwards(app_label, schema_editor, from_state, to_state)
        finally:
            schema_editor.sql_create_table = plain


@dataclass(frozen=True)
class Coverage:
    """The days that the partitions of a table cover without a hole, counted from today."""

    table: str
    days_back: int
    days_ahead: int


def ensure(cursor: Executes, today: date, back: int, ahead: int) -> list[str]:
    """Make missing partitions and return their names; LIKE and ATTACH take no lock that stops reads or writes."""
    made = []
    for table in TABLES:
        existing = names(cursor, table)
        for offset in range(-back, ahead + 1):
            day = today + DAY * offset
            name = partition_name(table, day)
            if name not in existing:
                make(cursor, table, day)
                made.append(name)
    return made


def make(cursor: Executes, table: str, day: date) -> None:
    name = partition_name(table, day)
    start = datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    lower, upper = id_range(start, start + DAY)
    # Two schedulers may come here at once; the second waits, and then finds the first one's work.
    cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [name])
    cursor.execute("SELECT to_regclass(%s)", [name])
    if cursor.fetchall()[0][0] is not None:
        return
    cursor.execute(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL){STORAGE.get(table, '')}")
    cursor.execute(f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ('{lower}') TO ('{upper}')")


def coverage(cursor: Executes, today: date) -> list[Coverage]:
    return [Coverage(table, *_unbroken(names(cursor, table), table, today)) for table in TABLES]


def names(cursor: Executes, table: str) -> set[str]:
    cursor.execute(
        "SELECT child.relname FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid"
        " WHERE inhparent = to_regclass(%s)",
        [table],
    )
    return {row[0] for row in cursor.fetchall()}


def partition_name(table: str, day: date) -> str:
    return f"{table}_{day:%Y%m%d}"


def _unbroken(existing: set[str], table: str, today: date) -> tuple[int, int]:
    def reach(step: int) -> int:
        count = 0
        while partition_name(table, today + DAY * step * count) in existing:
            count += 1
        return count - 1

    return reach(-1), reach(1)
