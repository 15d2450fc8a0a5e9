"""Firings of django-celery-beat's periodic tasks, which are served in place and are no jobs."""

import uuid

from django.db import models
from django.db.models import Index, Q, UniqueConstraint
from django.db.models.functions import Now

from runs.states import FiringState


class CeleryFiring(models.Model):
    """One firing. The table is in the database of the periodic tasks, which may be this one (runs/celery_beat)."""

    id = models.BigAutoField(primary_key=True)
    # django_celery_beat_periodictask.id; its row may be deleted.
    task_id = models.BigIntegerField()
    name = models.CharField(max_length=200)
    task = models.CharField(max_length=200)
    planned_at = models.DateTimeField()
    missed_since = models.DateTimeField(null=True)
    message_id = models.UUIDField()
    state = models.CharField(
        max_length=10,
        choices=FiringState.choices,
        default=FiringState.CLAIMED,
        db_default=FiringState.CLAIMED,
    )
    # The session that has it in hand, and whose it is.
    owner = models.UUIDField(default=uuid.uuid4)
    scheduler = models.CharField(max_length=200)
    claimed_at = models.DateTimeField(db_default=Now())
    sent_at = models.DateTimeField(null=True)
    # How often its message may have left, or its scheduler died over it.
    tries = models.PositiveSmallIntegerField(default=0, db_default=0)
    error = models.CharField(max_length=2000, blank=True, db_default="")

    class Meta:
        db_table = "beatkeeper_celery_firing"
        verbose_name = "Celery beat firing"
        constraints = [
            UniqueConstraint(fields=["task_id", "planned_at"], name="celery_firing_once_per_planned_time")
        ]
        indexes = [
            Index(
                fields=["task_id"],
                condition=Q(state__in=("claimed", "publishing")),
                name="celery_firing_open_idx",
            ),
            Index(fields=["-planned_at"], name="celery_firing_planned_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.name} at {self.planned_at}"
