"""Write `begins_at` and `ends_at` in stored schedules, for `start` and `end`.

Only the words change: a version stays what its runs executed, and nobody edited it. What a code base declared, and the
job as that was applied, are compared with the job of today, so they change with it. Audit entries and the answers kept
for repeated requests stay as they were given.

Each batch is a transaction of its own. A migration that was interrupted goes on where it is run again.
"""

from functools import partial
from typing import Any

from django.db import migrations, transaction

WORDS = {"start": "begins_at", "end": "ends_at"}
BATCH = 5000
# A table, where the schedule stands in it, and how it is put there.
PLACES = (
    ("beatkeeper_job_version", "schedule", "schedule = {renamed}"),
    ("beatkeeper_declaration", "(spec -> 'schedule')", "spec = jsonb_set(spec, '{{schedule}}', {renamed})"),
    (
        "beatkeeper_declaration",
        "(applied -> 'schedule')",
        "applied = jsonb_set(applied, '{{schedule}}', {renamed})",
    ),
)


def rewrite(words: dict[str, str], apps: Any, schema_editor: Any) -> None:
    for table, schedule, assignment in PLACES:
        # What code declared may be anything.
        old = f"jsonb_typeof({schedule}) = 'object' AND {schedule} ?| %(words)s"
        pairs = ", ".join(f"'{new}', {schedule} -> '{word}'" for word, new in words.items())
        renamed = f"({schedule} - %(words)s::text[]) || jsonb_strip_nulls(jsonb_build_object({pairs}))"
        update = f"UPDATE {table} SET {assignment.format(renamed=renamed)} WHERE id = ANY (%(ids)s) AND {old}"
        values: dict[str, Any] = {"words": list(words), "after": 0, "most": BATCH}
        find = f"SELECT id FROM {table} WHERE id > %(after)s AND {old} ORDER BY id LIMIT %(most)s"
        while ids := _execute(schema_editor, find, values):
            _rewrite_batch(schema_editor, table, update, {**values, "ids": ids})
            values["after"] = ids[-1]


def _execute(schema_editor: Any, statement: str, values: dict[str, Any]) -> list[int]:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute(statement, values)
        return [row[0] for row in cursor.fetchall()]


def _rewrite_batch(schema_editor: Any, table: str, update: str, values: dict[str, Any]) -> None:
    with transaction.atomic(schema_editor.connection.alias), schema_editor.connection.cursor() as cursor:
        # The database refuses changes of versions. Writers wait for this batch; readers do not.
        cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        cursor.execute(update, values)
        cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


class Migration(migrations.Migration):
    atomic = False
    # The columns first: a scheduler of the version before stops at them, and would stop planning jobs at the new words.
    dependencies = [("beatkeeper_jobs", "0005_words")]
    operations = [
        migrations.RunPython(
            partial(rewrite, WORDS), partial(rewrite, {new: word for word, new in WORDS.items()})
        )
    ]
