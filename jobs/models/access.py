"""Who may do what: tenants, the pools open to them, and their keys."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

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
    daily_quota = models.PositiveIntegerField(
        null=True, blank=True, help_text="Runs handed over per day (UTC), per pool."
    )
    retry_budget = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Retries let go per minute, over all pools; empty: as many as fall due.",
    )
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
            models.CheckConstraint(condition=Q(retry_budget__gt=0), name="tenant_retry_budget_positive"),
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
    broker = models.CharField(
        max_length=40,
        blank=True,
        db_default="",
        help_text="Name of a broker of BEATKEEPER_BROKERS; empty: the platform's own.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = PoolQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_pool"

    def __str__(self) -> str:
        return self.slug

    def clean(self) -> None:
        if self.broker and self.broker not in settings.BROKERS:
            known = ", ".join(sorted(settings.BROKERS)) or "none"
            raise ValidationError(
                {
                    "broker": f"There is no broker {self.broker!r}: BEATKEEPER_BROKERS names {known}."
                    " Leave it empty for the platform's own."
                }
            )


class Role(models.TextChoices):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


# A worker is no person: its role is a key's alone.
ROLES_OF_PEOPLE = [choice for choice in Role.choices if choice[0] != Role.WORKER]


class ApiKey(models.Model):
    id = models.AutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True, editable=False)
    digest = models.CharField(max_length=64, editable=False)
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.ADMIN)
    pool = models.ForeignKey(
        Pool,
        models.CASCADE,
        null=True,
        blank=True,
        related_name="keys",
        help_text="Of a worker's key: the one pool whose runs it may take.",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "beatkeeper_api_key"
        constraints = [
            models.CheckConstraint(
                condition=Q(role="worker", pool__isnull=False) | (~Q(role="worker") & Q(pool__isnull=True)),
                name="api_key_of_worker_has_pool",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Membership(models.Model):
    id = models.AutoField(primary_key=True)
    user = models.ForeignKey("auth.User", models.CASCADE, related_name="memberships")
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=ROLES_OF_PEOPLE, default=Role.VIEWER)

    class Meta:
        db_table = "beatkeeper_membership"
        constraints = [models.UniqueConstraint(fields=["user", "tenant"], name="membership_once_per_tenant")]

    def __str__(self) -> str:
        return f"{self.user} in {self.tenant}: {self.role}"
