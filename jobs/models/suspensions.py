"""Store suspensions: pauses and blackouts, which keep jobs from running."""

import uuid
from datetime import datetime

from django.contrib.postgres.functions import RandomUUID
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from .jobs import Job
from .pools import Pool
from .tenants import Tenant


class SuspensionKind(models.TextChoices):
    PAUSE = "pause"
    BLACKOUT = "blackout"


class Effect(models.TextChoices):
    """Say what becomes of the times planned inside a suspension."""

    # They get no run; when the suspension ends, the job's catch-up policy decides about them.
    CATCH_UP = "catch_up"
    # They get their runs, which are handed over only when the suspension has ended.
    HOLD = "hold"
    # They get no run.
    SKIP = "skip"
    # They get no run; each job that missed any runs once when the suspension has ended.
    RUN_AFTER = "run_after"


class SuspensionState(models.TextChoices):
    PLANNED = "planned"
    IN_FORCE = "in_force"
    OVER = "over"


class SuspensionQuerySet(models.QuerySet["Suspension"]):
    def in_state(self, state: str, now: datetime) -> "SuspensionQuerySet":
        is_over = Q(lifted_at__lte=now) | Q(ends_at__lte=now)
        if state == SuspensionState.OVER:
            return self.filter(is_over)
        begun = Q(begins_at__lte=now)
        return self.filter(~is_over & (begun if state == SuspensionState.IN_FORCE else ~begun))

    def seen_by(self, tenant: Tenant) -> "SuspensionQuerySet":
        """Keep a tenant's own, and those of the platform that may concern its jobs."""
        of_all = Q(tenant=None) & (Q(pool=None) | Q(pool__in=Pool.objects.open_to(tenant)))
        return self.filter(Q(tenant=tenant) | of_all).select_related("tenant", "pool", "job")


class Suspension(models.Model):
    """Suspend every job that matches all that is named here; one that names nothing suspends all jobs."""

    id = models.AutoField(primary_key=True)
    # In addresses and answers: the key would count the rows of all tenants.
    public_id = models.UUIDField(default=uuid.uuid4, db_default=RandomUUID(), unique=True, editable=False)
    kind = models.CharField(max_length=8, choices=SuspensionKind.choices)
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="suspensions")
    pool = models.ForeignKey(Pool, models.CASCADE, null=True, blank=True, related_name="suspensions")
    job = models.ForeignKey(Job, models.CASCADE, null=True, blank=True, related_name="suspensions")
    tag_name = models.CharField(max_length=60, blank=True)
    tag_value = models.CharField(max_length=200, blank=True)
    effect = models.CharField(max_length=9, choices=Effect.choices)
    reason = models.TextField(blank=True)
    begins_at = models.DateTimeField()
    # When a pause ends by itself; null for one that somebody must lift.
    ends_at = models.DateTimeField(null=True, blank=True)
    # When somebody lifted it before its end.
    lifted_at = models.DateTimeField(null=True, blank=True, editable=False)
    lifted_by = models.CharField(max_length=200, blank=True, editable=False)
    # It is over, the audit trail says so, and what it held back is settled.
    settled_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_by = models.CharField(max_length=200, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = SuspensionQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_suspension"
        verbose_name = "pause or blackout"
        verbose_name_plural = "pauses and blackouts"
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=SuspensionKind.values), name="suspension_kind_known"),
            models.CheckConstraint(condition=Q(effect__in=Effect.values), name="suspension_effect_known"),
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(ends_at__gt=F("begins_at")), name="suspension_not_empty"
            ),
            models.CheckConstraint(
                condition=~Q(kind=SuspensionKind.BLACKOUT) | Q(ends_at__isnull=False),
                name="suspension_blackout_ends",
            ),
            # One of the platform is shown to every tenant, which would see the job of another.
            models.CheckConstraint(
                condition=Q(job=None) | Q(tenant__isnull=False), name="suspension_of_job_has_tenant"
            ),
        ]
        indexes = [
            # Read by every pass of trigger and dispatch and by every claim: only the few that are not settled.
            models.Index(fields=["begins_at"], condition=Q(settled_at=None), name="suspension_unsettled_idx")
        ]

    def __str__(self) -> str:
        return self.reason or f"{self.kind} {self.pk}"

    @property
    def over_at(self) -> datetime | None:
        return min((at for at in (self.lifted_at, self.ends_at) if at is not None), default=None)

    @property
    def names_jobs(self) -> bool:
        """Tell whether it names which jobs, or suspends all of them."""
        return bool(self.tag_name) or self.job_id is not None or self.pool_id is not None

    @property
    def tag(self) -> str | None:
        """Write the tag as the API does: `team` for any value, `team:payments` for one."""
        return f"{self.tag_name}:{self.tag_value}".removesuffix(":") if self.tag_name else None

    def state(self, now: datetime) -> SuspensionState:
        if self.over_at is not None and self.over_at <= now:
            return SuspensionState.OVER
        return SuspensionState.PLANNED if self.begins_at > now else SuspensionState.IN_FORCE

    def describe(self) -> str:
        """Say which jobs are suspended."""
        whose = f" of {self.tenant}" if self.tenant else ""
        what = f"the job {self.job}" if self.job else "all jobs"
        tagged = f" tagged {self.tag}" if self.tag else ""
        where = f" in the pool {self.pool}" if self.pool else ""
        return f"{what}{whose}{tagged}{where}"
