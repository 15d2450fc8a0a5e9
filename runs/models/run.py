"""A run, what is live of it, and its attempts. Written by runs/transitions and the ledger, read by everybody."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk import outcomes


class ErrorClass(models.TextChoices):
    TRANSIENT = outcomes.TRANSIENT
    PERMANENT = outcomes.PERMANENT
    USER = outcomes.USER
    TIMEOUT = outcomes.TIMEOUT
    WORKER_LOST = outcomes.WORKER_LOST
    CANCELLED = outcomes.CANCELLED


class Ending(models.Model):
    """How something ended and where its log lies; the same columns for a run and for an attempt."""

    error_class = models.CharField(max_length=12, choices=ErrorClass.choices, blank=True, db_default="")
    error_type = models.CharField(max_length=200, blank=True, db_default="")
    error_line = models.TextField(blank=True, db_default="")
    fingerprint = models.CharField(max_length=32, blank=True, db_default="")
    exit_code = models.IntegerField(null=True)
    log_object = models.TextField(blank=True, db_default="")
    log_offset = models.BigIntegerField(null=True)
    log_length = models.BigIntegerField(null=True)

    class Meta:
        abstract = True


class Run(Ending):
    """One occurrence of a job, one partition a day. Inserted once, updated once: when it ends."""

    id = models.UUIDField(primary_key=True)
    tenant = models.ForeignKey(
        "beatkeeper_jobs.Tenant", models.DO_NOTHING, db_constraint=False, db_index=False
    )
    job = models.ForeignKey("beatkeeper_jobs.Job", models.DO_NOTHING, db_constraint=False, db_index=False)
    version = models.PositiveIntegerField()
    pool = models.ForeignKey("beatkeeper_jobs.Pool", models.DO_NOTHING, db_constraint=False, db_index=False)
    trigger = models.CharField(max_length=8, choices=Trigger.choices)
    planned_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())
    priority = models.PositiveSmallIntegerField()
    input = models.JSONField(null=True)
    retry_of = models.UUIDField(null=True)
    requested_by = models.CharField(max_length=200, blank=True, db_default="")
    traceparent = models.CharField(max_length=60, blank=True, db_default="")
    state = models.CharField(max_length=9, choices=FinalState.choices, null=True)  # noqa: DJ001 - null: not ended
    ended_from = models.CharField(max_length=16, blank=True, db_default="")
    reason = models.TextField(blank=True, db_default="")
    attempts = models.PositiveIntegerField(db_default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)

    class Meta:
        db_table = "beatkeeper_run"
        # Written in SQL by the first migration: the table is partitioned, which Django cannot say.
        indexes = [
            models.Index(fields=["job", "-id"], name="run_of_job_idx"),
            models.Index(fields=["tenant", "-id"], name="run_of_tenant_idx"),
            # Used by lists of what went wrong: without it they read every success on their way.
            models.Index(
                fields=["tenant", "-id"],
                condition=Q(state__in=["dead", "cancelled", "skipped"]),
                name="run_not_succeeded_idx",
            ),
        ]

    def __str__(self) -> str:
        return str(self.id)


class LiveRun(models.Model):
    """A run without an outcome: one slim row, deleted by the statement that ends it."""

    run = models.OneToOneField(
        Run, models.DO_NOTHING, primary_key=True, db_column="id", db_constraint=False, related_name="live"
    )
    tenant = models.ForeignKey(
        "beatkeeper_jobs.Tenant", models.DO_NOTHING, db_constraint=False, db_index=False
    )
    pool = models.ForeignKey("beatkeeper_jobs.Pool", models.DO_NOTHING, db_constraint=False, db_index=False)
    job = models.ForeignKey("beatkeeper_jobs.Job", models.DO_NOTHING, db_constraint=False, db_index=False)
    version = models.PositiveIntegerField()
    trigger = models.CharField(max_length=8, choices=Trigger.choices)
    planned_at = models.DateTimeField()
    priority = models.PositiveSmallIntegerField()
    available_at = models.DateTimeField()
    # Milliseconds: available_at less what the priority is worth. It never changes with time.
    rank = models.BigIntegerField()
    state = models.CharField(max_length=16, choices=LiveState.choices)
    reason = models.CharField(max_length=40, blank=True, db_default="")
    target_key = models.CharField(max_length=200)
    input = models.JSONField(null=True)
    gated = models.BooleanField(db_default=False)
    # Counts against the retry policy; claim_seq is the fencing token, which nothing ever lowers.
    attempt = models.PositiveIntegerField(db_default=0)
    losses = models.PositiveSmallIntegerField(db_default=0)
    # Of a retry that waits for its tenant's budget, the tenant. By a column of its own, because a planner who has not
    # seen a storm yet would look for its runs among all that are blocked.
    paced = models.PositiveIntegerField(null=True)
    claim_seq = models.PositiveIntegerField(db_default=0)
    claim_token = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    worker = models.UUIDField(null=True)
    placed_worker = models.UUIDField(null=True)
    pending = models.PositiveSmallIntegerField(db_default=0)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    # Its worker has heard of it and asked the body to stop.
    cancel_acknowledged_at = models.DateTimeField(null=True)
    cancel_reason = models.TextField(blank=True, db_default="")
    # Without the time to end by itself that a cancelled run has.
    terminate = models.BooleanField(db_default=False)
    wake_at = models.DateTimeField(null=True)
    traceparent = models.CharField(max_length=60, blank=True, db_default="")
    # While it waits for its callback: of the token, and where the log of the call lies.
    callback_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001 - null: costs a hot row nothing
    log_object = models.TextField(null=True)  # noqa: DJ001
    log_offset = models.BigIntegerField(null=True)
    log_length = models.BigIntegerField(null=True)

    class Meta:
        db_table = "beatkeeper_live_run"
        constraints = [
            models.CheckConstraint(condition=Q(state__in=LiveState.values), name="live_run_state_known"),
            models.CheckConstraint(
                condition=~Q(state="running")
                | Q(worker__isnull=False, claim_token__isnull=False, claimed_at__isnull=False),
                name="live_run_running_has_claim",
            ),
            models.CheckConstraint(
                condition=~Q(state="delayed") | Q(wake_at__isnull=False), name="live_run_delayed_wakes"
            ),
            models.CheckConstraint(
                condition=~Q(state="waiting_callback")
                | Q(wake_at__isnull=False, callback_digest__isnull=False, worker__isnull=False),
                name="live_run_waiting_has_deadline",
            ),
        ]
        indexes = [
            models.Index(
                # The id, so that a backlog that was due at one instant can be read on from the middle.
                fields=["pool", "tenant", "rank", "run"],
                condition=Q(state="ready"),
                name="live_run_ready_order_idx",
            ),
            models.Index(
                fields=["pool", "tenant", "rank", "queued_at"],
                condition=Q(state="queued"),
                name="live_run_queued_idx",
            ),
            models.Index(fields=["worker"], condition=Q(state="running"), name="live_run_claims_idx"),
            models.Index(fields=["wake_at"], condition=Q(wake_at__isnull=False), name="live_run_wake_idx"),
            models.Index(fields=["job", "state"], name="live_run_job_idx"),
            # Used by uncount_returned: what was handed over and came back unclaimed, which is nearly nothing.
            models.Index(
                fields=["pool"],
                condition=Q(state="ready", queued_at__isnull=False),
                name="live_run_returned_idx",
            ),
            # Used by the release of a job with a limit: its next runs, however many wait.
            models.Index(
                fields=["job", "pool", "rank"],
                condition=Q(state="blocked", reason="concurrency"),
                name="live_run_limited_idx",
            ),
            # Of a tenant with a budget of retries, the next to go, however many wait for it.
            models.Index(
                fields=["paced", "rank"], condition=Q(paced__isnull=False), name="live_run_budget_idx"
            ),
            # Of a job, the oldest planned time first: the ids of scheduled runs are in this order.
            models.Index(
                fields=["reason", "job", "run"], condition=Q(state="blocked"), name="live_run_blocked_idx"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.state}"


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
    run = models.ForeignKey(Run, models.DO_NOTHING, db_constraint=False, db_index=False)
    tenant = models.ForeignKey(
        "beatkeeper_jobs.Tenant", models.DO_NOTHING, db_constraint=False, db_index=False
    )
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
