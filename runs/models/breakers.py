"""Hold back runs that would only fail again: the circuit breaker of a job, the retry budget of a tenant."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now


class BreakerState(models.TextChoices):
    # Runs go; failures in a row are counted.
    CLOSED = "closed"
    # Runs are held until the cool-down is over.
    OPEN = "open"
    # One run, the probe, tries whether it works again; the others are held.
    HALF_OPEN = "half_open"


class Breaker(models.Model):
    """The breaker of a job. It is read and changed under the job's gate, so reports of its runs take turns."""

    job = models.OneToOneField(
        "beatkeeper_jobs.Job", models.CASCADE, primary_key=True, related_name="breaker"
    )
    limit = models.PositiveIntegerField()
    cooldown_ms = models.BigIntegerField()
    state = models.CharField(max_length=9, choices=BreakerState.choices, db_default=BreakerState.CLOSED)
    failures = models.PositiveIntegerField(db_default=0)
    opened_at = models.DateTimeField(null=True)
    probe_at = models.DateTimeField(null=True)
    probe = models.UUIDField(null=True)
    changed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "beatkeeper_breaker"
        constraints = [
            models.CheckConstraint(condition=Q(state__in=BreakerState.values), name="breaker_state_known"),
            models.CheckConstraint(
                condition=~Q(state="open") | Q(opened_at__isnull=False, probe_at__isnull=False),
                name="breaker_open_has_end",
            ),
            models.CheckConstraint(
                condition=~Q(state="half_open") | Q(probe__isnull=False), name="breaker_half_open_has_probe"
            ),
        ]
        # Which jobs are held: a few of very many.
        indexes = [models.Index(fields=["job"], condition=~Q(state="closed"), name="breaker_not_closed_idx")]

    def __str__(self) -> str:
        return f"{self.state}, {self.failures} of {self.limit}"


class RetryBudget(models.Model):
    """How many retries a tenant may have now. The row is locked while retries go: one process decides at a time."""

    tenant = models.OneToOneField(
        "beatkeeper_jobs.Tenant", models.CASCADE, primary_key=True, related_name="+"
    )
    tokens = models.FloatField()
    tokens_at = models.DateTimeField()

    class Meta:
        db_table = "beatkeeper_retry_budget"

    def __str__(self) -> str:
        return f"{self.tokens:.1f} left"
