"""Dead runs that wait for somebody to decide, and groups of them that are run again at a pace."""

import uuid

from django.db import models
from django.db.models import DO_NOTHING, CheckConstraint, Index, Q, UniqueConstraint
from django.db.models.functions import Now

from runs.models.runs import ErrorClass, Run


class DeadLetterDecision(models.TextChoices):
    OPEN = "", "open"
    REDRIVEN = "redriven"
    DISMISSED = "dismissed"


class RedriveState(models.TextChoices):
    WORKING = "working"
    DONE = "done"
    STOPPED = "stopped"


class Redrive(models.Model):
    """A group that runs again, so many a minute: what had died by `created_at`, the oldest death first."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", models.CASCADE, related_name="+")
    fingerprint = models.CharField(max_length=32)
    per_minute = models.PositiveIntegerField()
    input = models.JSONField(null=True)
    reason = models.TextField(blank=True, db_default="")
    requested_by = models.CharField(max_length=200, blank=True, db_default="")
    state = models.CharField(max_length=7, choices=RedriveState.choices, db_default=RedriveState.WORKING)
    created_at = models.DateTimeField(db_default=Now())
    next_at = models.DateTimeField(db_default=Now())
    # The last dead letter that was looked at: its death, and its run.
    cursor_at = models.DateTimeField(null=True)
    cursor = models.UUIDField(null=True)
    made = models.PositiveIntegerField(db_default=0)
    refused = models.PositiveIntegerField(db_default=0)
    last_refusal = models.TextField(blank=True, db_default="")
    ended_at = models.DateTimeField(null=True)
    ended_by = models.CharField(max_length=200, blank=True, db_default="")

    class Meta:
        db_table = "beatkeeper_redrive"
        constraints = [
            CheckConstraint(condition=Q(state__in=RedriveState.values), name="redrive_state_known"),
            CheckConstraint(
                condition=Q(per_minute__gte=1, per_minute__lte=6000), name="redrive_pace_1_to_6000"
            ),
            UniqueConstraint(
                fields=["tenant", "fingerprint"], condition=Q(state="working"), name="redrive_once_per_group"
            ),
        ]
        indexes = [
            Index(fields=["next_at"], condition=Q(state="working"), name="redrive_working_idx"),
            Index(fields=["tenant", "-created_at"], name="redrive_of_tenant_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.fingerprint}: {self.state}"


class DeadLetter(models.Model):
    """A dead run and what was decided of it, written by a trigger with the run's end.

    The run itself never changes. A decision is made once: its guarded write keeps two people from redriving one run.
    """

    run = models.OneToOneField(
        Run, DO_NOTHING, primary_key=True, db_constraint=False, related_name="dead_letter"
    )
    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", DO_NOTHING, db_constraint=False, db_index=False)
    job = models.ForeignKey("beatkeeper_jobs.Job", DO_NOTHING, db_constraint=False, db_index=False)
    fingerprint = models.CharField(max_length=32)
    error_class = models.CharField(max_length=12, choices=ErrorClass.choices, blank=True, db_default="")
    error_type = models.CharField(max_length=200, blank=True, db_default="")
    error_line = models.TextField(blank=True, db_default="")
    died_at = models.DateTimeField()
    decision = models.CharField(
        max_length=9, choices=DeadLetterDecision.choices, blank=True, db_default=DeadLetterDecision.OPEN
    )
    decided_at = models.DateTimeField(null=True)
    decided_by = models.CharField(max_length=200, blank=True, db_default="")
    reason = models.TextField(blank=True, db_default="")
    redriven_as = models.UUIDField(null=True)
    # That ran it again; of an open letter, the last one that could not.
    redrive = models.ForeignKey(
        Redrive, models.SET_NULL, null=True, related_name="letters", db_constraint=False, db_index=False
    )

    # Whether the listeners of events got the event run.dead.
    announced = models.BooleanField(db_default=False)

    class Meta:
        db_table = "beatkeeper_dead_letter"
        constraints = [
            CheckConstraint(
                condition=Q(decision="", decided_at__isnull=True)
                | Q(decision="redriven", decided_at__isnull=False, redriven_as__isnull=False)
                | Q(decision="dismissed", decided_at__isnull=False, redriven_as__isnull=True),
                name="dead_letter_decision_whole",
            )
        ]
        indexes = [
            # Groups by loose index scan; of a group the first, the last, and a page of its letters.
            Index(
                fields=["tenant", "fingerprint", "died_at", "run"],
                condition=Q(decision=""),
                name="dead_letter_open_idx",
            ),
            Index(fields=["job", "died_at", "run"], condition=Q(decision=""), name="dead_letter_of_job_idx"),
            # Of a group what was decided, page by page; and what was decided so long ago that it is forgotten.
            Index(
                fields=["tenant", "fingerprint", "died_at", "run"],
                condition=~Q(decision=""),
                name="dead_letter_decided_idx",
            ),
            Index(fields=["decided_at"], condition=~Q(decision=""), name="dead_letter_old_idx"),
            Index(fields=["died_at"], condition=Q(announced=False), name="dead_letter_unannounced_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.decision or 'open'}"
