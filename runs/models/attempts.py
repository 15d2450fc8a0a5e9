"""Finished tries of runs."""

from django.db import models
from django.db.models import DO_NOTHING

from runs.models.runs import Ending, Run


class AttemptOutcome(models.TextChoices):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"
    GIVEN_BACK = "given_back"


class Attempt(Ending):
    """One finished try, written by the statement that ends it. A repeated report is recognised by its id."""

    id = models.UUIDField(primary_key=True)
    run = models.ForeignKey(Run, DO_NOTHING, db_constraint=False, db_index=False)
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", DO_NOTHING, db_constraint=False, db_index=False)
    number = models.PositiveIntegerField()
    claim_seq = models.PositiveIntegerField()
    worker = models.UUIDField()
    worker_name = models.CharField(max_length=200, blank=True, db_default="")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    outcome = models.CharField(max_length=10, choices=AttemptOutcome.choices)
    next_state = models.CharField(max_length=16)
    # Of an attempt that a callback ended, or that waited for one: a repeated callback is recognised by them.
    callback_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001
    callback_content = models.CharField(max_length=64, null=True)  # noqa: DJ001

    class Meta:
        db_table = "beatkeeper_attempt"
        indexes = [models.Index(fields=["run", "claim_seq"], name="attempt_of_run_idx")]

    def __str__(self) -> str:
        return f"attempt {self.number}"
