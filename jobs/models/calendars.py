"""Store calendars: a tenant's working time, which jobs name in their schedules."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from .tenants import Tenant, slug_validator


class CalendarQuerySet(models.QuerySet["Calendar"]):
    def of(self, tenant: Tenant) -> "CalendarQuerySet":
        return self.filter(tenant=tenant, deleted_at=None)


class Calendar(models.Model):
    """Define working time: weekly hours less single dates."""

    id = models.AutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, models.CASCADE, related_name="calendars")
    name = models.CharField(max_length=40, validators=[slug_validator])
    description = models.CharField(max_length=200, blank=True)
    timezone = models.CharField(max_length=60, default="UTC")
    # dates: [{"date": "2026-12-25", "name": "Christmas"}]. weekly: {"mon": [["09:00", "17:00"]]}; empty: always open.
    dates = models.JSONField(default=list, blank=True)
    weekly = models.JSONField(default=dict, blank=True)
    edition = models.PositiveIntegerField(default=1)
    # The last job whose clock was set by this edition; null when all are.
    rearmed_to = models.UUIDField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    # A row stays when its calendar is deleted: old versions of jobs refer to it.
    deleted_at = models.DateTimeField(null=True, blank=True, editable=False)

    objects = CalendarQuerySet.as_manager()

    class Meta:
        db_table = "beatkeeper_calendar"
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "name"],
                condition=Q(deleted_at=None),
                name="calendar_name_once_per_tenant",
            )
        ]
        indexes = [
            # Every scheduler polls this: only the calendars whose jobs are being rescheduled.
            models.Index(
                fields=["updated_at"], condition=Q(rearmed_to__isnull=False), name="calendar_rearming_idx"
            )
        ]

    def __str__(self) -> str:
        return self.name
