"""Runs and what is live of them: written by runs/transitions and the ledger, read by everybody."""

from collections.abc import Collection
from functools import cached_property
from typing import Any, Self

from django.db import models
from django.db.models import DO_NOTHING, CheckConstraint, F, Index, Q
from django.db.models.base import ModelState
from django.db.models.functions import Now

from jobs.validation.instants import as_text
from runs.reasons import Reason, describe
from runs.states import FinalState, LiveState, Trigger
from scheduler_project.sdk import outcomes

# True of every run that did not succeed, and of no other. A success leaves both columns as they were inserted, so the
# update that ends it changes nothing that an index has, and writes none.
SAYS_WHY = ~Q(error_class="") | ~Q(reason="")
# A retry that waits for its tenant's budget.
BUDGETED = Q(state="blocked", reason=Reason.RETRY_BUDGET)


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


class Planned(models.Model):
    """What a run and its live row both know of their job and its planned time."""

    tenant = models.ForeignKey("beatkeeper_jobs.Tenant", DO_NOTHING, db_constraint=False, db_index=False)
    job = models.ForeignKey("beatkeeper_jobs.Job", DO_NOTHING, db_constraint=False, db_index=False)
    pool = models.ForeignKey("beatkeeper_jobs.Pool", DO_NOTHING, db_constraint=False, db_index=False)
    version = models.PositiveIntegerField()
    trigger = models.CharField(max_length=8, choices=Trigger.choices)
    planned_at = models.DateTimeField()
    priority = models.PositiveSmallIntegerField()
    input = models.JSONField(null=True)
    traceparent = models.CharField(max_length=60, blank=True, db_default="")

    class Meta:
        abstract = True

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Collection[Any], **_: Any) -> Self:
        """Make an instance of a row as Django does, in a fifth of the time: lists read many of them.

        It skips `__init__` and the signals pre_init and post_init.
        """
        row = cls.__new__(cls)
        row._state = ModelState()
        row._state.adding, row._state.db = False, db
        # A field that is not among the names is deferred.
        row.__dict__.update(zip(field_names, values, strict=True))
        return row


class Run(Planned, Ending):
    """One occurrence of a job, one partition a day. Inserted once, updated once: when it ends."""

    id = models.UUIDField(primary_key=True)
    created_at = models.DateTimeField(db_default=Now())
    retry_of = models.UUIDField(null=True)
    requested_by = models.CharField(max_length=200, blank=True, db_default="")
    requested_reason = models.TextField(blank=True, db_default="")
    state = models.CharField(max_length=9, choices=FinalState.choices, null=True)  # noqa: DJ001 - null: not ended
    ended_from = models.CharField(max_length=16, blank=True, db_default="")
    reason = models.TextField(blank=True, db_default="")
    attempts = models.PositiveIntegerField(db_default=0)
    # As its live row had them at the end.
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    cancel_acknowledged_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    result = models.JSONField(null=True)

    class Meta:
        db_table = "beatkeeper_run"
        # Written in SQL by the first migration: the table is partitioned, which Django cannot say.
        indexes = [
            Index(fields=["job", "-id"], name="run_of_job_idx"),
            Index(fields=["tenant", "-id"], name="run_of_tenant_idx"),
            # Used by lists of what went wrong: without it they read every success on their way.
            Index(fields=["tenant", "-id"], condition=SAYS_WHY, name="run_went_wrong_idx"),
        ]

    def __str__(self) -> str:
        return str(self.id)

    @cached_property
    def text_id(self) -> str:
        return str(self.pk)

    @property
    def live_or_none(self) -> "LiveRun | None":
        """Return the live row of an unfinished run. Read both by one statement: between two the run could end."""
        return None if self.state else getattr(self, "live", None)

    @property
    def current_state(self) -> str:
        """Return the one state of the run, live or final; empty if its live row has just gone."""
        return self.state or (self.live_or_none.state if self.live_or_none else "")


class LiveRun(Planned):
    """A run without an outcome: one slim row, deleted by the statement that ends it."""

    run = models.OneToOneField(
        Run, DO_NOTHING, primary_key=True, db_column="id", db_constraint=False, related_name="live"
    )
    available_at = models.DateTimeField()
    # Milliseconds: available_at less what the priority is worth. It never changes with time.
    rank = models.BigIntegerField()
    state = models.CharField(max_length=16, choices=LiveState.choices)
    reason = models.CharField(max_length=40, blank=True, db_default="")
    target_key = models.CharField(max_length=200)
    gated = models.BooleanField(db_default=False)
    # Counts against the retry policy; claim_seq is the fencing token, which nothing ever lowers.
    attempt = models.PositiveIntegerField(db_default=0)
    losses = models.PositiveSmallIntegerField(db_default=0)
    # Of a retry that waits for its tenant's budget, the tenant. By a column of its own, because a planner whose
    # statistics show few such runs would look for them among all that are blocked.
    budget_tenant = models.PositiveIntegerField(null=True)
    claim_seq = models.PositiveIntegerField(db_default=0)
    claim_token = models.UUIDField(null=True)
    claimed_at = models.DateTimeField(null=True)
    worker = models.UUIDField(null=True)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    cancel_requested_at = models.DateTimeField(null=True)
    # Its worker confirmed it and asked the body to stop.
    cancel_acknowledged_at = models.DateTimeField(null=True)
    cancel_reason = models.TextField(blank=True, db_default="")
    # Without the time to end by itself that a cancelled run has.
    terminate = models.BooleanField(db_default=False)
    wake_at = models.DateTimeField(null=True)
    # While it waits for its callback: of the token, and where the log of the call lies.
    callback_digest = models.CharField(max_length=64, null=True)  # noqa: DJ001 - null: costs a hot row nothing
    log_object = models.TextField(null=True)  # noqa: DJ001
    log_offset = models.BigIntegerField(null=True)
    log_length = models.BigIntegerField(null=True)
    # Noted for an answer by runs/services/explain.py: why it waits while it is ready or queued.
    waits_for = ""

    class Meta:
        db_table = "beatkeeper_live_run"
        constraints = [
            CheckConstraint(condition=Q(state__in=LiveState.values), name="live_run_state_known"),
            CheckConstraint(
                condition=~Q(state="running")
                | Q(worker__isnull=False, claim_token__isnull=False, claimed_at__isnull=False),
                name="live_run_running_has_claim",
            ),
            CheckConstraint(
                condition=~Q(state="delayed") | Q(wake_at__isnull=False), name="live_run_delayed_wakes"
            ),
            CheckConstraint(
                condition=~Q(state="waiting_callback")
                | Q(wake_at__isnull=False, callback_digest__isnull=False, worker__isnull=False),
                name="live_run_waiting_has_deadline",
            ),
            # Without its tenant, nothing would ever find it to let it go. Each side is never null, which would pass.
            CheckConstraint(
                condition=Q(BUDGETED, budget_tenant__isnull=False, budget_tenant=F("tenant_id"))
                | (~BUDGETED & Q(budget_tenant=None)),
                name="live_run_budget_has_tenant",
            ),
        ]
        indexes = [
            Index(
                # The id, so that a backlog that was due at one instant can be read on from the middle.
                fields=["pool", "tenant", "rank", "run"],
                condition=Q(state="ready"),
                name="live_run_ready_order_idx",
            ),
            Index(
                fields=["pool", "tenant", "rank", "queued_at"],
                condition=Q(state="queued"),
                name="live_run_queued_idx",
            ),
            # Used by claims over all queues of a pool: who was queued first.
            Index(fields=["pool", "queued_at"], condition=Q(state="queued"), name="live_run_turn_idx"),
            Index(fields=["worker"], condition=Q(state="running"), name="live_run_claims_idx"),
            # Used to count what runs of a queue with a limit.
            Index(fields=["pool", "tenant"], condition=Q(state="running"), name="live_run_running_idx"),
            Index(fields=["wake_at"], condition=Q(wake_at__isnull=False), name="live_run_wake_idx"),
            Index(fields=["job", "state"], name="live_run_job_idx"),
            # Used by uncount_returned: what was handed over and came back unclaimed, which is nearly nothing.
            Index(
                fields=["pool"],
                condition=Q(state="ready", queued_at__isnull=False),
                name="live_run_returned_idx",
            ),
            # Used by the release of a job with a limit: its next runs, however many wait.
            Index(
                fields=["job", "pool", "rank"],
                condition=Q(state="blocked", reason=Reason.CONCURRENCY),
                name="live_run_limited_idx",
            ),
            # Of a tenant with a budget of retries, the next to go, however many wait for it.
            Index(
                fields=["budget_tenant", "rank"],
                condition=Q(budget_tenant__isnull=False),
                name="live_run_budget_idx",
            ),
            # Of a job, the oldest planned time first: the ids of scheduled runs are in this order.
            Index(fields=["reason", "job", "run"], condition=Q(state="blocked"), name="live_run_blocked_idx"),
            # Used to count a queue; the path of a run that goes at once does not write it.
            Index(
                fields=["pool", "tenant", "state", "rank"],
                condition=Q(state__in=["delayed", "blocked", "waiting_callback"]),
                name="live_run_counted_idx",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id} {self.state}"

    def describe_reason(self) -> str:
        """Return what holds it back, in words. Empty: nothing does."""
        if self.cancel_requested_at is not None:
            how = "killed" if self.terminate else "asked to stop"
            if self.state == LiveState.RUNNING and self.cancel_acknowledged_at is None:
                how = f"to be {how}, which its worker has not confirmed yet"
            return f"{how}: {describe(self.cancel_reason)}" if self.cancel_reason else how
        if self.state == LiveState.WAITING_CALLBACK and self.wake_at is not None:
            return f"accepted by its target, which has until {as_text(self.wake_at)} to report the outcome"
        return describe(self.waits_for or self.reason)
