"""Store the responses to requests with an Idempotency-Key."""

from django.db import models
from django.db.models.functions import Now

from .tenants import Tenant


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
