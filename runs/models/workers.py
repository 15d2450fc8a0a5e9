"""Keep workers as they report themselves."""

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import DurationField, ExpressionWrapper, F, Q, Value
from django.db.models.functions import Now

from jobs.models import Tenant


class NodeState(models.TextChoices):
    ACTIVE = "active"
    DRAINING = "draining"
    LOST = "lost"
    LEFT = "left"


class WorkerNodeQuerySet(models.QuerySet["WorkerNode"]):
    def of_teams(self, tenants: Iterable[Any]) -> "WorkerNodeQuerySet":
        """Return workers of these tenants, and those of pools of their own. Shared ones are the platform's business."""
        teams = list(tenants)
        of_the_platform = Q(tenant=None, pool__shared=False, pool__tenants__in=teams)
        return self.filter(Q(tenant__in=teams) | of_the_platform).distinct()

    def serving(self, tenant: Tenant) -> "WorkerNodeQuerySet":
        """Return those that take runs of a tenant: the same as the fragment `serves` of the SQL."""
        return self.filter(Q(tenant=None) | Q(tenant=tenant))

    def living(self) -> "WorkerNodeQuerySet":
        """Return those that take runs: the same as the fragment `living_worker` of the SQL."""
        return self.within_lease().filter(state=NodeState.ACTIVE)

    def within_lease(self) -> "WorkerNodeQuerySet":
        """Return those that sent a heartbeat within their lease, also while they drain."""
        lease = ExpressionWrapper(F("lease_seconds") * Value(timedelta(seconds=1)), DurationField())
        present = (NodeState.ACTIVE, NodeState.DRAINING)
        return self.filter(state__in=present, last_beat_at__gt=Now() - lease)


class WorkerNode(models.Model):
    """One incarnation of a worker. The lease is the node's, not the run's."""

    incarnation = models.UUIDField(primary_key=True, default=uuid.uuid4)
    name = models.CharField(max_length=200)
    pool = models.ForeignKey("beatkeeper_jobs.Pool", models.CASCADE, related_name="nodes")
    # Of a worker that came with a tenant's key: it takes runs of that tenant alone.
    tenant = models.ForeignKey(
        "beatkeeper_jobs.Tenant", models.CASCADE, null=True, blank=True, related_name="nodes"
    )
    host = models.CharField(max_length=200)
    pid = models.IntegerField()
    slots = models.PositiveIntegerField()
    busy = models.PositiveIntegerField(db_default=0)
    foreign_busy = models.PositiveIntegerField(db_default=0)
    known_targets = ArrayField(models.CharField(max_length=200), default=list)
    region = models.CharField(max_length=60, blank=True, db_default="")
    state = models.CharField(max_length=8, choices=NodeState.choices, db_default=NodeState.ACTIVE)
    version = models.CharField(max_length=40, blank=True, db_default="")
    started_at = models.DateTimeField(db_default=Now())
    beat_no = models.BigIntegerField(db_default=0)
    last_beat_at = models.DateTimeField(db_default=Now())
    previous_beat_at = models.DateTimeField(db_default=Now())
    held = ArrayField(models.UUIDField(), default=list)
    held_until = models.DateTimeField(null=True)
    # As its guard reckons: what the platform believes of a worker must not differ from what the worker does.
    lease_seconds = models.FloatField(db_default=30.0)
    # How far its machine's clock is ahead of the database's.
    skew_ms = models.FloatField(null=True)

    objects = WorkerNodeQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_worker_node"
        indexes = [models.Index(fields=["pool", "state"], name="worker_node_pool_idx")]

    def __str__(self) -> str:
        return self.name
