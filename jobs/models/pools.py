"""Store pools: groups of workers, and what each of them exports."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from scheduler_project.sdk.ids import EPOCH

from .tenants import Tenant, slug_validator


class PoolQuerySet(models.QuerySet["Pool"]):
    def open_to(self, tenant: Tenant) -> "PoolQuerySet":
        return self.filter(Q(shared=True) | Q(pk__in=tenant.pools.values("pk")))


class Pool(models.Model):
    """Name a group of workers. A job in the pool may only name targets that the pool exports."""

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
    # Named by the scheduler that dispatches the pool: where its workers for all tenants hear of work.
    broker_queue = models.CharField(max_length=120, db_default="", editable=False)
    # No run that is queued in the pool was queued before this instant; written by dispatch, read by claims.
    queued_since = models.DateTimeField(db_default=EPOCH, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    objects = PoolQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_pool"

    def __str__(self) -> str:
        return self.slug

    def clean(self) -> None:
        if self.broker and self.broker not in settings.BROKERS:
            known = ", ".join(sorted(settings.BROKERS)) or "none"
            wrong = f"There is no broker {self.broker!r}: BEATKEEPER_BROKERS names {known}."
            raise ValidationError({"broker": f"{wrong} Leave it empty for the platform's own."})
