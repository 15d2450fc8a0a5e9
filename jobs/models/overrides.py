"""Store overrides: single planned times that somebody skipped or moved."""

import uuid

from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models.functions import Now


class Override(models.Model):
    """Skip one planned time of a job, or move it to another instant."""

    # In addresses and answers: the key would count the rows of all tenants.
    public_id = models.UUIDField(default=uuid.uuid4, db_default=RandomUUID(), unique=True, editable=False)
    job = models.ForeignKey("beatkeeper_jobs.Job", models.CASCADE, related_name="overrides")
    planned_at = models.DateTimeField()
    # Null: skipped.
    moved_to = models.DateTimeField(null=True)
    reason = models.TextField(blank=True)
    created_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    # Its run exists, or a run row says why there is none.
    done_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "beatkeeper_override"
        constraints = [models.UniqueConstraint(fields=["job", "planned_at"], name="override_once")]

    def __str__(self) -> str:
        return f"{self.planned_at}: {self.moved_to or 'skipped'}"
