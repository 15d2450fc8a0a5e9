"""Store API keys. Only a digest of a key is kept."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from .pools import Pool
from .tenants import Role, Tenant


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
        help_text="For a worker's key: the one pool whose runs it may take.",
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
