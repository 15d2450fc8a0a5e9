"""What changes planned times from outside a job's schedule: calendars, stops, and changes of single times."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from .access import Pool, Tenant, slug_validator


class CalendarQuerySet(models.QuerySet["Calendar"]):
    def of(self, tenant: Tenant) -> "CalendarQuerySet":
        return self.filter(tenant=tenant, deleted_at=None)


class Calendar(models.Model):
    """A tenant's working time: weekly hours less single dates. Jobs name it in their schedules."""

    id = models.AutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="calendars")
    name = models.CharField(max_length=40, validators=[slug_validator])
    description = models.CharField(max_length=200, blank=True)
    timezone = models.CharField(max_length=60, default="UTC")
    # [{"date": "2026-12-25", "name": "Christmas"}], and {"mon": [["09:00", "17:00"]]}: no weekly hours, always open.
    dates = models.JSONField(default=list, blank=True)
    weekly = models.JSONField(default=dict, blank=True)
    edition = models.PositiveIntegerField(default=1)
    # The last job whose clock was set by the present edition; null once all were.
    rearmed_to = models.UUIDField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    # Versions of jobs that are none any more still name it.
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = CalendarQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_calendar"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(deleted_at=None),
                name="calendar_name_once_per_tenant",
            )
        ]
        indexes = [
            # Asked by every scheduler all the time: only those whose jobs are on their way.
            models.Index(
                fields=["updated_at"], condition=Q(rearmed_to__isnull=False), name="calendar_rearming_idx"
            )
        ]

    def __str__(self) -> str:
        return self.name


class StopKind(models.TextChoices):
    PAUSE = "pause"
    BLACKOUT = "blackout"


class Effect(models.TextChoices):
    """What becomes of the times planned inside a stop."""

    # They get no run; when the stop ends, the job's catch-up policy decides about them.
    CATCH_UP = "catch_up"
    # They get their runs, which are handed over only when the stop has ended.
    HOLD = "hold"
    # They get no run.
    SKIP = "skip"
    # They get no run; each job that missed any runs once when the stop has ended.
    RUN_AFTER = "run_after"


class Stop(models.Model):
    """A pause or a blackout. It concerns every job that fits all that it names; one that names nothing, all jobs."""

    id = models.AutoField(primary_key=True)
    kind = models.CharField(max_length=8, choices=StopKind.choices)
    tenant = models.ForeignKey(Tenant, models.CASCADE, null=True, blank=True, related_name="stops")
    pool = models.ForeignKey(Pool, models.CASCADE, null=True, blank=True, related_name="stops")
    tag_name = models.CharField(max_length=60, blank=True)
    tag_value = models.CharField(max_length=200, blank=True)
    effect = models.CharField(max_length=9, choices=Effect.choices)
    note = models.TextField(blank=True)
    begins_at = models.DateTimeField()
    # Of a pause: when it is lifted by itself, if ever.
    ends_at = models.DateTimeField(null=True, blank=True)
    # Somebody lifted it earlier.
    lifted_at = models.DateTimeField(null=True, blank=True, editable=False)
    lifted_by = models.CharField(max_length=200, blank=True, editable=False)
    # Over, told in the audit trail, and what it held back is settled.
    settled_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_by = models.CharField(max_length=200, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "beatkeeper_stop"
        verbose_name = "pause or blackout"
        verbose_name_plural = "pauses and blackouts"
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=StopKind.values), name="stop_kind_known"),
            models.CheckConstraint(condition=Q(effect__in=Effect.values), name="stop_effect_known"),
            models.CheckConstraint(
                condition=Q(ends_at=None) | Q(ends_at__gt=F("begins_at")), name="stop_not_empty"
            ),
            models.CheckConstraint(
                condition=~Q(kind=StopKind.BLACKOUT) | Q(ends_at__isnull=False), name="stop_blackout_ends"
            ),
        ]
        indexes = [
            # Read by every pass of trigger and dispatch and by every claim: only the few that are not settled.
            models.Index(fields=["begins_at"], condition=Q(settled_at=None), name="stop_unsettled_idx")
        ]

    def __str__(self) -> str:
        return self.note or f"{self.kind} {self.pk}"


class PlannedChange(models.Model):
    """One planned time of a job that somebody skipped, or moved to another instant."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey("beatkeeper_jobs.Job", models.CASCADE, related_name="planned_changes")
    planned_at = models.DateTimeField()
    # Null: skipped.
    moved_to = models.DateTimeField(null=True)
    note = models.TextField(blank=True)
    made_by = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(db_default=Now())
    # Its run exists, or it was told why there is none.
    done_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "beatkeeper_planned_change"
        constraints = [models.UniqueConstraint(fields=["job", "planned_at"], name="planned_change_once")]

    def __str__(self) -> str:
        return f"{self.planned_at}: {self.moved_to or 'skipped'}"
