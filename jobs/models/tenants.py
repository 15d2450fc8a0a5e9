"""Store tenants, and the roles of the people who belong to them."""

from django.contrib.postgres.fields import ArrayField
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
    requests_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Requests to the API, one key at most half of them; empty: BEATKEEPER_REQUESTS_PER_MINUTE.",
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
            models.CheckConstraint(
                condition=Q(requests_per_minute__gt=0), name="tenant_requests_per_minute_positive"
            ),
        ]

    def __str__(self) -> str:
        return self.slug


class Role(models.TextChoices):
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"
    WORKER = "worker"


# Only a key can have the role worker.
ROLES_OF_PEOPLE = [choice for choice in Role.choices if choice[0] != Role.WORKER]


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
