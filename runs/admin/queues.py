"""Queues in the admin: where the runs of a tenant wait in a pool, what blocks them, and the tenant's limits."""

from collections.abc import Iterator
from typing import Any

from django.db.models.functions import Now
from django.http import HttpRequest

from jobs.admin.base import ReadOnlyAdmin, related
from jobs.admin.columns import column
from jobs.admin.html import WARNING, label
from runs.reasons import describe
from runs.scheduler.dispatch.queues import counted_today
from runs.services.queues import note_counts


class QueueAdmin(ReadOnlyAdmin):
    list_display = ("broker_queue", "pool", "tenant", "reason_column", "runs", "limits")
    list_filter = related("pool", "tenant")
    list_select_related = ("pool", "tenant")
    search_fields = ("broker_queue",)
    ordering = ("id",)
    more_fields = ("created_at",)

    reason_column = column(
        "blocked by", lambda queue: queue.reason and label(describe(queue.reason), WARNING), ordering="reason"
    )
    runs = column("runs", lambda queue: describe_counts(queue))
    limits = column("limits", lambda queue: "; ".join(describe_limits(queue)))

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).annotate(now=Now())

    def complete_page(self, request: HttpRequest, rows: list[Any]) -> None:
        note_counts(rows)


def describe_counts(queue: Any) -> str:
    if queue.runs_by_state is None:
        # On the page of one queue; a list notes them for all its rows at once.
        note_counts([queue])
    counts = queue.runs_by_state.items()
    return ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in counts if count)


def describe_limits(queue: Any) -> Iterator[str]:
    tenant = queue.tenant
    if tenant.max_running is not None:
        yield f"at most {tenant.max_running} at once"
    if tenant.rate_limit is not None:
        yield f"{tenant.rate_limit:g} a second"
    if tenant.daily_quota is not None:
        yield f"{counted_today(queue.day, queue.day_count, queue.now)} of {tenant.daily_quota} today"
    if tenant.retry_budget is not None:
        yield f"{tenant.retry_budget} retries a minute"
