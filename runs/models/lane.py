"""Where runs queue, and what a job locks before its runs are counted."""

from django.db import models
from django.db.models.functions import Now


class JobGate(models.Model):
    """Of a job with a limit, or an overlap policy that buffers or cancels: locked before anybody counts its runs."""

    job = models.OneToOneField("beatkeeper_jobs.Job", models.CASCADE, primary_key=True, related_name="gate")
    max_running = models.PositiveIntegerField(null=True)

    class Meta:
        db_table = "beatkeeper_job_gate"

    def __str__(self) -> str:
        return f"at most {self.max_running}" if self.max_running else "no limit"


class Lane(models.Model):
    """Where the runs of one tenant in one pool queue. A reason here stops the lane, not each of its runs."""

    id = models.AutoField(primary_key=True)
    pool = models.ForeignKey("beatkeeper_jobs.Pool", models.CASCADE, related_name="lanes")
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", models.CASCADE, related_name="lanes")
    queue = models.CharField(max_length=120)
    window = models.PositiveIntegerField(db_default=0)
    tokens = models.FloatField(null=True)
    tokens_at = models.DateTimeField(null=True)
    day = models.DateField(null=True)
    day_count = models.BigIntegerField(db_default=0)
    reason = models.CharField(max_length=40, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "beatkeeper_lane"
        constraints = [models.UniqueConstraint(fields=["pool", "tenant"], name="lane_once")]

    def __str__(self) -> str:
        return self.queue
