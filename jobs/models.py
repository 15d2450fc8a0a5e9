"""What should run and when. Nothing here knows of runs."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

# A job's slice never changes, so the number of slices is fixed for the life of an installation.
JOB_SLICES = 64
DEFAULT_PRIORITY = 500

slug_validator = RegexValidator(
    r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", "Use small letters, digits and inner hyphens, at most 40."
)


class Tenant(models.Model):
    id = models.AutoField(primary_key=True)
    slug = models.CharField(max_length=40, unique=True, validators=[slug_validator])
    name = models.CharField(max_length=100)
    weight = models.PositiveSmallIntegerField(default=1, help_text="Share of a pool's slots, 1 to 100.")
    max_running = models.PositiveIntegerField(
        null=True, blank=True, help_text="Runs queued or running at once, per pool."
    )
    rate_limit = models.FloatField(null=True, blank=True, help_text="Runs handed over per second, per pool.")
    allowed_hosts = ArrayField(
        models.CharField(max_length=260),
        default=list,
        blank=True,
        help_text="Hosts (or host:port) on private networks that this tenant's HTTP targets may call.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "beatkeeper_tenant"
        constraints = [
            models.CheckConstraint(
                condition=Q(weight__gte=1, weight__lte=100), name="tenant_weight_1_to_100"
            ),
            models.CheckConstraint(condition=Q(rate_limit__gt=0), name="tenant_rate_limit_positive"),
        ]

    def __str__(self) -> str:
        return self.slug


class PoolQuerySet(models.QuerySet["Pool"]):
    def open_to(self, tenant: Tenant) -> "PoolQuerySet":
        return self.filter(Q(shared=True) | Q(pk__in=tenant.pools.values("pk")))


class Pool(models.Model):
    """A named group of workers. What it exports is all a job may name as its target there."""

    id = models.AutoField(primary_key=True)
    slug = models.CharField(max_length=40, unique=True, validators=[slug_validator])
    description = models.CharField(max_length=200, blank=True)
    exported_tasks = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    exported_kinds = ArrayField(models.CharField(max_length=20), default=list, blank=True)
    shared = models.BooleanField(default=False, help_text="Open to every tenant.")
    tenants = models.ManyToManyField(
        Tenant, blank=True, db_table="beatkeeper_pool_tenant", related_name="pools"
    )
    paused_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = PoolQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_pool"

    def __str__(self) -> str:
        return self.slug


class Role(models.TextChoices):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class ApiKey(models.Model):
    id = models.AutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.ADMIN)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "beatkeeper_api_key"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Membership(models.Model):
    id = models.AutoField(primary_key=True)
    user = models.ForeignKey("auth.User", models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.VIEWER)

    class Meta:
        db_table = "beatkeeper_membership"
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="membership_once_per_tenant")]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant}: {self.role}"


class JobStatus(models.TextChoices):
    ACTIVE = "active"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    UNRUNNABLE = "unrunnable"


class Overlap(models.TextChoices):
    SKIP = "skip"
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
    timeout_ms = models.BigIntegerField()
    overlap = models.CharField(max_length=16, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up = models.JSONField()
    retry = models.JSONField()
    max_concurrency = models.PositiveIntegerField(null=True)
    resources = models.JSONField(default=dict)
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

    def __str__(self) -> str:
        return f"version {self.version}"


class JobClock(models.Model):
    """The only row the trigger locks and moves. No next time: nothing is planned."""

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="clock")
    slice = models.PositiveSmallIntegerField()
    next_run_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "beatkeeper_job_clock"
        constraints = [
            models.CheckConstraint(condition=Q(slice__lt=JOB_SLICES), name="job_clock_slice_known")
        ]
        indexes = [
            models.Index(
                fields=["slice", "next_run_at"],
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
    declared_at = models.DateTimeField(db_default=Now())
    applied_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)

    class Meta:
        db_table = "beatkeeper_declaration"
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="declaration_once_per_name")]
        indexes = [
            models.Index(fields=["declared_at"], condition=Q(applied_at=None), name="declaration_waiting_idx")
        ]

    def __str__(self) -> str:
        return self.name


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
