"""Let the end of a success write no index, and leave room for it on the page of its row (decision 17).

Indexes are made one partition after the other without a lock that holds up writers. The other changes take a moment,
but need locks that writers queue behind: each waits a second for its lock, and is tried again. A migration that was
interrupted goes on where it is run again.
"""

import time
from functools import partial
from typing import Any

from django.db import OperationalError, migrations, models, transaction
from django.db.models import Q
from psycopg.errors import LockNotAvailable

from runs.scheduler import day_partitions

TABLE = "beatkeeper_run"
OLD, NEW = "run_not_succeeded_idx", "run_went_wrong_idx"
CONDITIONS = {
    OLD: "state IN ('dead', 'cancelled', 'skipped')",
    NEW: "NOT (error_class = '') OR NOT (reason = '')",
}
TRIES = 60

# NOT VALID: reading all runs would hold up writers. What is there already is looked at by the next step.
GUARD = f"""
ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS run_failure_says_why,
    ADD CONSTRAINT run_failure_says_why
        CHECK (state IS NULL OR state = 'succeeded' OR error_class <> '' OR reason <> '') NOT VALID
"""
UNGUARD = f"ALTER TABLE {TABLE} DROP CONSTRAINT IF EXISTS run_failure_says_why"
# Remote workers could report a failure without a class. The condition on the state is that of the old index.
WITHOUT_CLASS = "state IN ('dead', 'cancelled', 'skipped') AND error_class = '' AND reason = ''"


def execute(schema_editor: Any, statement: str) -> list[Any]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(statement)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


def change(schema_editor: Any, *statements: str) -> None:
    """Execute statements in a transaction that does not let writers queue behind it for long."""
    for left in reversed(range(TRIES)):
        try:
            with transaction.atomic(schema_editor.connection.alias):
                for statement in ("SET LOCAL lock_timeout = '1s'", *statements):
                    execute(schema_editor, statement)
            return
        except OperationalError as error:
            if not left or not isinstance(error.__cause__, LockNotAvailable):
                raise
            time.sleep(1)


def guard(apps: Any, schema_editor: Any) -> None:
    change(schema_editor, GUARD)


def unguard(apps: Any, schema_editor: Any) -> None:
    change(schema_editor, UNGUARD)


def name_classes(apps: Any, schema_editor: Any) -> None:
    found = f"SELECT DISTINCT tableoid::regclass::text FROM {TABLE} WHERE {WITHOUT_CLASS}"
    for partition in execute(schema_editor, found):
        change(
            schema_editor,
            f"ALTER TABLE {partition} DISABLE TRIGGER run_final_is_final",
            f"UPDATE {partition} SET error_class = CASE state WHEN 'cancelled' THEN state ELSE 'permanent' END"
            f" WHERE {WITHOUT_CLASS}",
            f"ALTER TABLE {partition} ENABLE TRIGGER run_final_is_final",
        )


def replace_index(old: str, new: str, apps: Any, schema_editor: Any) -> None:
    definition = f"(tenant_id, id DESC) WHERE {CONDITIONS[new]}"
    change(schema_editor, f"CREATE INDEX IF NOT EXISTS {new} ON ONLY {TABLE} {definition}")
    # In this order: a partition that a scheduler makes from now on has the index.
    missing = partitions(schema_editor)
    missing -= set(
        execute(
            schema_editor,
            "SELECT indrelid::regclass::text FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid"
            f" WHERE inhparent = '{new}'::regclass",
        )
    )
    for partition in sorted(missing):
        name = f"{partition}_{new.removeprefix('run_')}"
        # Left by a migration that was interrupted.
        execute(schema_editor, f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        execute(schema_editor, f"CREATE INDEX CONCURRENTLY {name} ON {partition} {definition}")
        change(schema_editor, f"ALTER INDEX {new} ATTACH PARTITION {name}")
    change(schema_editor, f"DROP INDEX IF EXISTS {old}")


def partitions(schema_editor: Any) -> set[str]:
    with schema_editor.connection.cursor() as cursor:
        return day_partitions.names(cursor, TABLE)


def leave_room(apps: Any, schema_editor: Any) -> None:
    for partition in sorted(partitions(schema_editor)):
        change(schema_editor, f"ALTER TABLE {partition} SET (fillfactor = 45)")


def leave_none(apps: Any, schema_editor: Any) -> None:
    for partition in sorted(partitions(schema_editor)):
        change(schema_editor, f"ALTER TABLE {partition} RESET (fillfactor)")


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("beatkeeper_runs", "0007_claims_over_queues")]
    operations = [
        migrations.RunPython(guard, unguard),
        migrations.RunPython(name_classes, migrations.RunPython.noop),
        migrations.SeparateDatabaseAndState(
            [migrations.RunPython(partial(replace_index, OLD, NEW), partial(replace_index, NEW, OLD))],
            [
                migrations.RemoveIndex("run", OLD),
                migrations.AddIndex(
                    "run",
                    models.Index(
                        fields=["tenant", "-id"],
                        condition=~Q(("error_class", "")) | ~Q(("reason", "")),
                        name=NEW,
                    ),
                ),
            ],
        ),
        migrations.RunPython(leave_room, leave_none),
    ]
