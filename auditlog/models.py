"""The audit trail. Entries are only added; the database refuses to change or delete them."""

from django.db import models
from django.db.models.functions import Now


class ActorKind(models.TextChoices):
    USER = "user"
    KEY = "key"
    SYSTEM = "system"
    WORKER = "worker"


class AuditEntry(models.Model):
    at = models.DateTimeField(db_default=Now())
    tenant_id = models.IntegerField(null=True, blank=True)
    actor_kind = models.CharField(max_length=8, choices=ActorKind.choices)
    actor = models.CharField(max_length=200)
    action = models.CharField(max_length=60)
    object_type = models.CharField(max_length=40)
    object_id = models.CharField(max_length=60)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    reason = models.TextField(blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    address = models.GenericIPAddressField(null=True, blank=True)

    class Meta:
        db_table = "beatkeeper_audit_entry"
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["tenant_id", "-id"], name="audit_tenant_idx"),
            models.Index(fields=["object_type", "object_id", "-id"], name="audit_object_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.object_type} {self.object_id}"
