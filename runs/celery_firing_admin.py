"""Firings of periodic tasks that are served in place, for operators, from the database where they lie."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from jobs.display import NOTHING, moment
from jobs.staff import BAD, BUSY, GOOD, WARNING, OfThePlatform, label
from jobs.uncounted_pages import Uncounted
from runs.celery_beat.firing_states import FiringState
from runs.models import CeleryFiring

COLOURS = {
    FiringState.CLAIMED: BUSY,
    FiringState.PUBLISHING: BUSY,
    FiringState.SENT: GOOD,
    FiringState.UNKNOWN: WARNING,
    FiringState.REFUSED: BAD,
}
THEIRS = "celery_beat"


class CeleryFiringAdmin(OfThePlatform):
    paginator = Uncounted
    list_display = ("planned", "name", "task", "shown_state", "sent", "missed", "scheduler", "error")
    list_filter = (("state", ChoicesDropdownFilter),)
    search_fields = ("=name", "=task", "=message_id")
    search_help_text = "The whole name of a periodic task, of a Celery task, or a message's id"
    ordering = ("-planned_at",)
    sortable_by = ()
    fields = (
        ("name", "task", "task_id"),
        ("planned", "missed", "shown_state"),
        ("claimed", "sent", "scheduler"),
        ("message_id",),
        ("error",),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        if THEIRS not in settings.DATABASES:
            return rows
        # The first scheduler that serves them makes the table.
        there = CeleryFiring._meta.db_table in connections[THEIRS].introspection.table_names()
        return rows.using(THEIRS) if there else rows.none()

    @admin.display(description="planned")
    def planned(self, firing: CeleryFiring) -> SafeString | str:
        return moment(firing.planned_at)

    @admin.display(description="state")
    def shown_state(self, firing: CeleryFiring) -> SafeString:
        return label(firing.state, COLOURS[FiringState(firing.state)])

    @admin.display(description="claimed")
    def claimed(self, firing: CeleryFiring) -> SafeString | str:
        return moment(firing.claimed_at)

    @admin.display(description="sent")
    def sent(self, firing: CeleryFiring) -> SafeString | str:
        return moment(firing.sent_at)

    @admin.display(description="stands for the times since")
    def missed(self, firing: CeleryFiring) -> SafeString | str:
        return moment(firing.missed_since) if firing.missed_since else NOTHING
