"""Define where runs wait, and what is locked before the runs of a job are counted."""

from datetime import datetime

from django.db import models
from django.db.models.functions import Now


class JobGate(models.Model):
    """The lock of a job whose runs are counted: it has a limit, a breaker, or a policy that buffers or cancels."""

    job = models.OneToOneField("beatkeeper_jobs.Job", models.CASCADE, primary_key=True, related_name="gate")
    max_running = models.PositiveIntegerField(null=True)

    class Meta:
        db_table = "beatkeeper_job_gate"

    def __str__(self) -> str:
        return f"at most {self.max_running}" if self.max_running else "no limit"


class Queue(models.Model):
    """The queue of one tenant in one pool. A reason here holds the queue, not each of its runs."""

    id = models.AutoField(primary_key=True)
    pool = models.ForeignKey("beatkeeper_jobs.Pool", models.CASCADE, related_name="queues")
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", models.CASCADE, related_name="queues")
    # Wakes the tenant's own workers; the broker holds it while there are some. Others listen to that of the pool.
    broker_queue = models.CharField(max_length=120)
    queued = models.PositiveIntegerField(db_default=0)
    tokens = models.FloatField(null=True)
    tokens_at = models.DateTimeField(null=True)
    day = models.DateField(null=True)
    day_count = models.BigIntegerField(db_default=0)
    reason = models.CharField(max_length=40, blank=True, db_default="")
    created_at = models.DateTimeField(db_default=Now())
    # Noted for an answer by runs/services/queues.py.
    runs_by_state: dict[str, int] | None = None
    oldest_waiting_at: datetime | None = None

    class Meta:
        db_table = "beatkeeper_queue"
        constraints = [models.UniqueConstraint(fields=["pool", "tenant"], name="queue_once")]
        indexes = [
            # Used by dispatch, which ends reasons that are no longer so. An update that changes none does not write it.
            models.Index(
                fields=["pool", "tenant"], condition=~models.Q(reason=""), name="queue_shows_reason_idx"
            ),
        ]

    def __str__(self) -> str:
        return self.broker_queue
