"""Store secrets, encrypted with a key that is never in the database."""

from django.db import models
from django.db.models.functions import Now

from .tenants import Tenant


class Secret(models.Model):
    """Hold a value that jobs refer to as `${secret:NAME}`. Only a claim of one of their runs decrypts it."""

    id = models.AutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="secrets")
    name = models.CharField(max_length=64)
    # Tenant and name are authenticated with it: copied to another row it cannot be decrypted.
    ciphertext = models.TextField(editable=False)
    key_id = models.CharField(max_length=12, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    created_by = models.CharField(max_length=200, blank=True, editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_by = models.CharField(max_length=200, blank=True, editable=False)
    # Claims write it once an hour at most, so that a busy secret does not become a busy row.
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        db_table = "beatkeeper_secret"
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="secret_name_once_per_tenant")]
        indexes = [
            models.Index(fields=["tenant", "-created_at", "-id"], name="secret_newest_first_idx"),
            models.Index(fields=["key_id"], name="secret_key_idx"),
        ]

    def __str__(self) -> str:
        return self.name
