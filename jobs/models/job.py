"""A job, what it executes at each of its versions, and its clock."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from .access import Pool, Tenant
from .time import Calendar

# A job's slice never changes, so the number of slices is fixed for the life of an installation.
JOB_SLICES = 64
DEFAULT_PRIORITY = 500


class JobStatus(models.TextChoices):
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    UNRUNNABLE = "unrunnable"


class Overlap(models.TextChoices):
    """What becomes of a planned time while an earlier scheduled run of the job is unfinished."""

    SKIP = "skip"
    BUFFER_ONE = "buffer_one"
    BUFFER_ALL = "buffer_all"
    CANCEL_OTHER = "cancel_other"
    TERMINATE_OTHER = "terminate_other"
    ALLOW_ALL = "allow_all"


class JobQuerySet(models.QuerySet["Job"]):
    def present(self) -> "JobQuerySet":
        return self.filter(deleted_at=None)

    def of(self, tenant: Tenant) -> "JobQuerySet":
        return self.present().filter(tenant=tenant)


class Job(models.Model):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    pool = models.ForeignKey(Pool, models.PROTECT, related_name="jobs")
    status = models.CharField(max_length=10, choices=JobStatus.choices, default=JobStatus.ACTIVE)
    status_note = models.TextField(blank=True)
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
    resources = models.JSONField(default=dict)
    # Those the target refers to, so that nobody deletes one in use.
    secret_names = ArrayField(models.CharField(max_length=64), default=list, db_default=[])
    # Intervals count from here: the instant of the edit that set the schedule, or the schedule's own start.
    anchor_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(max_length=200, blank=True)

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


class Declaration(models.Model):
    """A job declared by a decorator in a team's code, on its way through the same services as everybody's."""

    tenant = models.ForeignKey(Tenant, models.CASCADE)
    pool = models.ForeignKey(Pool, models.CASCADE)
    name = models.CharField(max_length=120)
    spec = models.JSONField()
    # The code base, by the name of its Celery app: what it no longer declares, it has removed.
    source = models.CharField(max_length=200, blank=True, db_default="")
    declared_at = models.DateTimeField(db_default=Now())
    applied_at = models.DateTimeField(null=True, blank=True)
    # Taken back by its code base: the job is cancelled.
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)
    # Said with a worker's key, which reaches no further than the runs of its pool do.
    of_key = models.BooleanField(db_default=False)
    job = models.ForeignKey(Job, models.SET_NULL, null=True, blank=True, related_name="declarations")
    # What the job was after this had been applied; whoever changed it since has made it drift.
    applied = models.JSONField(null=True, blank=True)

    class Meta:
        db_table = "beatkeeper_declaration"
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="declaration_once_per_name")]
        indexes = [
            models.Index(fields=["declared_at"], condition=Q(applied_at=None), name="declaration_waiting_idx")
        ]

    def __str__(self) -> str:
        return self.name


class RunRequest(models.Model):
    """A run that code asks for, at once or at an instant, on its way through the same services as everybody's."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    tenant = models.ForeignKey(Tenant, models.CASCADE)
    pool = models.ForeignKey(Pool, models.CASCADE)
    # The same key again is the same request.
    key = models.CharField(max_length=200)
    # The one-time job as the API takes it; of a run at once: the declared job's name and the input.
    spec = models.JSONField()
    at = models.DateTimeField(null=True, blank=True)
    requested_at = models.DateTimeField(db_default=Now())
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    # Looked at by the platform; a request to cancel that comes later is looked at again.
    applied_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True, db_default="")
    job = models.ForeignKey(Job, models.SET_NULL, null=True, blank=True, related_name="+")
    run = models.UUIDField(null=True, blank=True)

    class Meta:
        db_table = "beatkeeper_run_request"
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="run_request_once_per_key")]
        indexes = [
            models.Index(
                fields=["requested_at"], condition=Q(applied_at=None), name="run_request_waiting_idx"
            ),
            models.Index(fields=["requested_at"], name="run_request_age_idx"),
        ]

    def __str__(self) -> str:
        return self.key


class IdempotentRequest(models.Model):
    """What was answered to a request with an Idempotency-Key, so that its repetition gets the same answer."""

    tenant = models.ForeignKey(Tenant, models.CASCADE)
    key = models.CharField(max_length=64)
    fingerprint = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(default=0)
    answer = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "beatkeeper_idempotent_request"
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="idempotent_request_once")]
        indexes = [models.Index(fields=["created_at"], name="idempotent_request_age_idx")]

    def __str__(self) -> str:
        return self.key
