"""Store what code declares and requests, on its way through the services."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from .jobs import Job
from .pools import Pool
from .tenants import Tenant


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
    # Declared with a worker's key, which reaches no further than the runs of its pool do.
    of_key = models.BooleanField(db_default=False)
    job = models.ForeignKey(Job, models.SET_NULL, null=True, blank=True, related_name="declarations")
    # What the job was after this had been applied; a change since then is drift.
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
