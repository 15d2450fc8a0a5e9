"""Store which rows of django-celery-beat became jobs, so that the import can be undone."""

from django.db import models
from django.db.models.functions import Now


class ImportedTask(models.Model):
    """Link a row of django-celery-beat to the job it became."""

    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", models.CASCADE, related_name="+")
    # The row's database, and its id and name there.
    source = models.CharField(max_length=200)
    task_id = models.BigIntegerField()
    name = models.CharField(max_length=200)
    job = models.OneToOneField("beatkeeper_jobs.Job", models.CASCADE, related_name="imported_task")
    imported_at = models.DateTimeField(db_default=Now())
    # When the row was switched off in favour of the job, and when the import was undone.
    switched_off_at = models.DateTimeField(null=True)
    undone_at = models.DateTimeField(null=True)
    # While the import is undone: a planned time that the job did not trigger, until the row has it.
    untriggered_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "beatkeeper_imported_task"
        constraints = [
            models.UniqueConstraint(fields=["source", "task_id", "tenant"], name="imported_task_once_per_row")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.source}"
