"""A job, what it executes at each of its versions, and its clock."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from .calendars import Calendar
from .overlap import Overlap
from .pools import Pool
from .tenants import Tenant

# A job's slice never changes, so the number of slices is fixed for the life of an installation.
JOB_SLICES = 64
DEFAULT_PRIORITY = 500
# Jobs that a calendar or a secret names as its users.
MAX_NAMED = 10


class JobStatus(models.TextChoices):
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    UNRUNNABLE = "unrunnable"


class JobQuerySet(models.QuerySet["Job"]):
    def present(self) -> "JobQuerySet":
        return self.filter(deleted_at=None)

    def of(self, tenant: Tenant) -> "JobQuerySet":
        return self.present().filter(tenant=tenant)

    def tagged(self, name: str, value: str = "") -> "JobQuerySet":
        """Keep those with this tag; without a value, whatever its value is."""
        return self.filter(tags__contains={name: value}) if value else self.filter(tags__has_key=name)


class Job(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="jobs")
    status = models.CharField(max_length=10, choices=JobStatus.choices, default=JobStatus.ACTIVE)
    status_reason = models.TextField(blank=True)
    status_by = models.CharField(max_length=200, blank=True)
    status_at = models.DateTimeField(db_default=Now())
    # A paused job goes on by itself then.
    paused_until = models.DateTimeField(null=True, blank=True)
    priority = models.PositiveSmallIntegerField(default=DEFAULT_PRIORITY)
    tags = models.JSONField(default=dict, blank=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(db_default=Now())
    updated_at = models.DateTimeField(db_default=Now())
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_job"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"], condition=Q(deleted_at=None), name="job_name_once_per_tenant"
            ),
            models.CheckConstraint(condition=Q(priority__lte=1000), name="job_priority_0_to_1000"),
            models.CheckConstraint(condition=Q(status__in=JobStatus.values), name="job_status_known"),
        ]
        indexes = [
            models.Index(
                F("tenant"),
                F("created_at").desc(),
                F("id").desc(),
                condition=Q(deleted_at=None),
                name="job_newest_first_idx",
            ),
            GinIndex(fields=["tags"], opclasses=["jsonb_path_ops"], name="job_tags_idx"),
            models.Index(
                fields=["paused_until"], condition=Q(paused_until__isnull=False), name="job_paused_until_idx"
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def spec(self) -> "JobVersion":
        return self.versions.get(version=self.version)


class JobVersionQuerySet(models.QuerySet["JobVersion"]):
    def in_use(self) -> "JobVersionQuerySet":
        """Keep the present versions of jobs that may run again: those neither cancelled nor deleted."""
        present = self.filter(version=F("job__version"), job__deleted_at=None)
        return present.exclude(job__status=JobStatus.CANCELLED)

    def job_names(self, rest: str) -> str:
        """List the names of the first jobs; `rest` stands for the others, which are not counted."""
        names = list(self.values_list("job__name", flat=True)[: MAX_NAMED + 1])
        return ", ".join(names[:MAX_NAMED]) + (rest if len(names) > MAX_NAMED else "")


class JobVersion(models.Model):
    """What a run of this version executes. Written at each edit, never changed (the database refuses)."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="versions")
    version = models.PositiveIntegerField()
    target = models.JSONField()
    target_key = models.CharField(max_length=200)
    schedule = models.JSONField(null=True)
    calendar = models.ForeignKey(Calendar, models.PROTECT, null=True, related_name="versions", db_index=False)
    timeout_ms = models.BigIntegerField()
    overlap = models.CharField(max_length=16, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up = models.JSONField()
    retry = models.JSONField()
    # After so many failures in a row runs are held for a while; null: never.
    breaker = models.JSONField(null=True)
    max_concurrency = models.PositiveIntegerField(null=True)
    # Those the target refers to, so that nobody deletes one in use.
    secret_names = ArrayField(models.CharField(max_length=64), default=list, db_default=[])
    # The fields that stand in the job's row, as they were; null in versions written before they were kept.
    job_fields = models.JSONField(null=True, blank=True)
    # Intervals count from here: the instant of the edit that set the schedule, or the schedule's own start.
    anchor_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200, blank=True)

    objects = JobVersionQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_job_version"
        constraints = [
            models.UniqueConstraint(fields=["job", "version"], name="job_version_once"),
            models.CheckConstraint(condition=Q(overlap__in=Overlap.values), name="job_version_overlap_known"),
            models.CheckConstraint(
                condition=Q(timeout_ms__gte=1000, timeout_ms__lte=2_592_000_000),
                name="job_version_timeout_1s_to_30d",
            ),
        ]
        indexes = [
            # The jobs of a calendar, in the order in which an edit of it goes through them.
            models.Index(
                fields=["calendar", "job"],
                condition=Q(calendar__isnull=False),
                name="job_version_calendar_idx",
            ),
            GinIndex(
                fields=["secret_names"], condition=~Q(secret_names=[]), name="job_version_secret_names_idx"
            ),
        ]

    def __str__(self) -> str:
        return f"version {self.version}"


class JobClock(models.Model):
    """The only row the trigger locks and moves. No next time: nothing is planned."""

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="clock")
    slice = models.PositiveSmallIntegerField()
    next_run_at = models.DateTimeField(null=True)
    # The job's: of those due on the same instant, the most urgent are triggered first, however many they are.
    priority = models.PositiveSmallIntegerField(default=DEFAULT_PRIORITY, db_default=DEFAULT_PRIORITY)

    class Meta:
        db_table = "beatkeeper_job_clock"
        constraints = [
            models.CheckConstraint(condition=Q(slice__lt=JOB_SLICES), name="job_clock_slice_known")
        ]
        indexes = [
            models.Index(
                fields=["slice", "next_run_at", "-priority"],
                condition=Q(next_run_at__isnull=False),
                name="job_clock_due_idx",
            )
        ]

    def __str__(self) -> str:
        return f"next at {self.next_run_at}"
