"""Lanes in the admin: where the runs of a tenant queue, why they cannot go, and what its limits are."""

from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.safestring import SafeString

from jobs.display import NOTHING
from jobs.staff import WARNING, LookOnly, OwnRelated, label
from runs.lanes import counted_today
from runs.models import Lane


class LaneAdmin(LookOnly):
    list_display = ("queue", "pool", "tenant", "shown_reason", "window", "limits")
    list_filter = (("pool", OwnRelated), ("tenant", OwnRelated))
    list_select_related = ("pool", "tenant")
    search_fields = ("queue",)
    ordering = ("id",)
    fields = (("queue", "pool", "tenant"), ("shown_reason", "limits"), ("window", "created_at"))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        lanes: QuerySet[Any] = super().get_queryset(request).annotate(now=Now())
        return lanes

    @admin.display(description="why it cannot go", ordering="reason")
    def shown_reason(self, lane: Lane) -> SafeString | str:
        return label(lane.reason, WARNING) if lane.reason else NOTHING

    @admin.display(description="limits")
    def limits(self, lane: Lane) -> str:
        return "; ".join(limits_in_words(lane)) or NOTHING


def limits_in_words(lane: Any) -> Iterator[str]:
    tenant = lane.tenant
    if tenant.max_running is not None:
        yield f"at most {tenant.max_running} at once"
    if tenant.rate_limit is not None:
        yield f"{tenant.rate_limit:g} a second"
    if tenant.daily_quota is not None:
        yield f"{counted_today(lane.day, lane.day_count, lane.now)} of {tenant.daily_quota} today"
    if tenant.retry_budget is not None:
        yield f"{tenant.retry_budget} retries a minute"
