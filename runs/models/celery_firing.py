"""Firings of periodic tasks that are served in place: of django-celery-beat's rows, no jobs of ours."""

import uuid

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from runs.celery_beat.firing_states import FiringState


class CeleryFiring(models.Model):
    """Lies in the database of the periodic tasks; here too where that is ours (runs/celery_beat)."""

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
            models.UniqueConstraint(
                fields=["task_id", "planned_at"], name="celery_firing_once_per_planned_time"
            )
        ]
        indexes = [
            models.Index(
                fields=["task_id"],
                condition=Q(state__in=("claimed", "publishing")),
                name="celery_firing_open_idx",
            ),
            models.Index(fields=["-planned_at"], name="celery_firing_planned_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.name} at {self.planned_at}"
