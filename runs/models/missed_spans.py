"""Planned times that got no run of their own."""

from django.db import models
from django.db.models import CheckConstraint, Index, Q, UniqueConstraint
from django.db.models.functions import Now


class SpanState(models.TextChoices):
    # A suspension is on: each visit makes it longer.
    OPEN = "open"
    # The catch-up policy is `all`: its cursor goes through it.
    WORKING = "working"
    SETTLED = "settled"


class MissedSpan(models.Model):
    """Planned times of [begins_at, ends_at) that got no run of their own, and why (promise 3).

    A planned time has a run or lies in a span, never both: a working span shrinks with each run made of it.
    """

    id = models.BigAutoField(primary_key=True)
    # After an outage there is one for each job: checking keys would cost more than all the rest of it.
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", models.CASCADE, db_constraint=False)
    job = models.ForeignKey(
        "beatkeeper_jobs.Job",
        models.CASCADE,
        related_name="missed_spans",
        db_constraint=False,
        db_index=False,
    )
    version = models.PositiveIntegerField()
    begins_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=40)
    policy = models.CharField(max_length=9)
    state = models.CharField(max_length=7, choices=SpanState.choices, db_default=SpanState.SETTLED)
    # Of the job, so that the scheduler that triggers a job also works off its spans.
    slice = models.PositiveSmallIntegerField(db_default=0)
    suspension = models.ForeignKey(
        "beatkeeper_jobs.Suspension",
        models.SET_NULL,
        null=True,
        related_name="+",
        db_constraint=False,
        db_index=False,
    )
    # Of a working span: the next time to run, when its pace allows it, and how many it has run.
    # Of an open one: the planned time that follows its last, with which the next visit goes on.
    cursor = models.DateTimeField(null=True)
    next_at = models.DateTimeField(null=True)
    made = models.BigIntegerField(db_default=0)
    # Counted when there is time for it, up to the bound in runs/scheduler/trigger/missed.py.
    count = models.BigIntegerField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "beatkeeper_missed_span"
        constraints = [
            CheckConstraint(condition=Q(begins_at__lt=models.F("ends_at")), name="missed_span_not_empty"),
            CheckConstraint(
                condition=~Q(state="working") | Q(cursor__isnull=False, next_at__isnull=False),
                name="missed_span_working_has_cursor",
            ),
            # Several of a suspension only where it was interrupted: by a run, an edit, or another suspension.
            UniqueConstraint(
                fields=["job", "suspension", "begins_at"],
                condition=Q(state="open"),
                name="missed_span_opened_once",
            ),
        ]
        indexes = [
            Index(fields=["job", "-begins_at"], name="missed_span_job_idx"),
            Index(fields=["slice", "next_at"], condition=Q(state="working"), name="missed_span_working_idx"),
            Index(fields=["suspension", "slice"], condition=Q(state="open"), name="missed_span_open_idx"),
            Index(
                fields=["slice"],
                condition=Q(count__isnull=True) & ~Q(state="open"),
                name="missed_span_uncounted_idx",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.begins_at} to {self.ends_at}: {self.reason}"
