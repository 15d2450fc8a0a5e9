"""Firings of django-celery-beat's periodic tasks, for operators, read from the database that holds them."""

from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest

from jobs.admin.base import OperatorAdmin, by_choice
from jobs.admin.columns import label_column, moment_column
from jobs.admin.html import BAD, BUSY, GOOD, WARNING
from jobs.admin.pagination import UncountedPaginator
from runs.models import CeleryFiring
from runs.states import FiringState

COLOURS = {
    FiringState.CLAIMED: BUSY,
    FiringState.PUBLISHING: BUSY,
    FiringState.SENT: GOOD,
    FiringState.UNKNOWN: WARNING,
    FiringState.REFUSED: BAD,
}
DATABASE = "celery_beat"


class CeleryFiringAdmin(OperatorAdmin):
    paginator = UncountedPaginator
    list_display = ("planned", "name", "task", "state_column", "sent", "missed", "scheduler", "error")
    list_filter = by_choice("state")
    search_fields = ("=name", "=task", "=message_id")
    search_help_text = "The full name of a periodic task or of a Celery task, or the id of a message"
    ordering = ("-planned_at",)
    sortable_by = ()
    more_fields = (("claimed", "task_id"), "message_id")

    planned = moment_column("planned_at")
    state_column = label_column("state", COLOURS)
    claimed = moment_column("claimed_at")
    sent = moment_column("sent_at")
    missed = moment_column("missed_since", "missed times since")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        if DATABASE not in settings.DATABASES:
            return rows
        # The first scheduler that serves periodic tasks creates the table.
        exists = CeleryFiring._meta.db_table in connections[DATABASE].introspection.table_names()
        return rows.using(DATABASE) if exists else rows.none()
