"""Call the reason of a decision, and where missed times begin and end, as everywhere else."""

from django.db import migrations, models

# PostgreSQL renames columns in constraints and indexes by itself; Django's state would have them made anew.
BOUNDS = """
ALTER TABLE beatkeeper_missed_span RENAME COLUMN from_at TO begins_at;
ALTER TABLE beatkeeper_missed_span RENAME COLUMN to_at TO ends_at;
"""
UNDO = """
ALTER TABLE beatkeeper_missed_span RENAME COLUMN begins_at TO from_at;
ALTER TABLE beatkeeper_missed_span RENAME COLUMN ends_at TO to_at;
"""
NOT_EMPTY = models.CheckConstraint(
    condition=models.Q(begins_at__lt=models.F("ends_at")), name="missed_span_not_empty"
)
OPENED_ONCE = models.UniqueConstraint(
    fields=["job", "suspension", "begins_at"],
    condition=models.Q(state="open"),
    name="missed_span_opened_once",
)
OF_JOB = models.Index(fields=["job", "-begins_at"], name="missed_span_job_idx")


class Migration(migrations.Migration):
    dependencies = [("beatkeeper_runs", "0004_kept_instants")]
    operations = [
        migrations.RenameField("deadletter", "note", "reason"),
        migrations.SeparateDatabaseAndState(
            [migrations.RunSQL(BOUNDS, UNDO)],
            [
                migrations.RemoveConstraint("missedspan", NOT_EMPTY.name),
                migrations.RemoveConstraint("missedspan", OPENED_ONCE.name),
                migrations.RemoveIndex("missedspan", OF_JOB.name),
                migrations.RenameField("missedspan", "from_at", "begins_at"),
                migrations.RenameField("missedspan", "to_at", "ends_at"),
                migrations.AddConstraint("missedspan", NOT_EMPTY),
                migrations.AddConstraint("missedspan", OPENED_ONCE),
                migrations.AddIndex("missedspan", OF_JOB),
            ],
        ),
    ]
