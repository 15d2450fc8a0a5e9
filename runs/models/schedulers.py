"""Schedulers, as they report themselves."""

import uuid

from django.db import models
from django.db.models.functions import Now


class SchedulerNode(models.Model):
    """One incarnation of a scheduler, as it reports itself; nothing depends on it."""

    incarnation = models.UUIDField(primary_key=True, default=uuid.uuid4)
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    job_slices = models.PositiveIntegerField(db_default=0)
    pools = models.PositiveIntegerField(db_default=0)
    runs_recovery = models.BooleanField(db_default=False)
    # Seconds since the last successful pass and the longest recent one, by loop.
    loops = models.JSONField(default=dict)
    # Totals since its start by kind of pass, see runs/scheduler/observer.py.
    passes = models.JSONField(default=dict)
    skew_ms = models.FloatField(null=True)
    started_at = models.DateTimeField(db_default=Now())
    last_seen_at = models.DateTimeField(db_default=Now())
    left_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "beatkeeper_scheduler_node"

    def __str__(self) -> str:
        return f"{self.host} {self.pid}"
