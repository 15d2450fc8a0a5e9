"""What was taken over from another scheduler, so that it can be given back."""

from django.db import models
from django.db.models.functions import Now


class ImportedTask(models.Model):
    """A row of django-celery-beat and the job it became."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", models.CASCADE, related_name="+")
    # Which database the row lies in, and its id and name there.
    source = models.CharField(max_length=200)
    task_id = models.BigIntegerField()
    name = models.CharField(max_length=200)
    job = models.OneToOneField("beatkeeper_jobs.Job", models.CASCADE, related_name="imported_task")
    imported_at = models.DateTimeField(db_default=Now())
    # Since when the row is switched off in favour of the job, and since when it is the row's turn again.
    switched_off_at = models.DateTimeField(null=True)
    undone_at = models.DateTimeField(null=True)
    # On the way back: a time of the job's that nobody triggered, until the row has it.
    untriggered_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "beatkeeper_imported_task"
        constraints = [
            models.UniqueConstraint(fields=["source", "task_id", "tenant"], name="imported_task_once_per_row")
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.source}"
