"""Serve a tenant's queues: their runs, why a queue is blocked, and how much of the limits is left."""

from typing import Any

from django.db.models.functions import Now
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers

from jobs.api.openapi import operation
from jobs.api.serializers import InstantField, PlainField
from jobs.api.views import ListView
from jobs.models import Tenant
from jobs.validation.schema import number, obj
from runs.api.serializers import ReasonCodeField, ReasonTextField
from runs.models import Queue
from runs.scheduler.dispatch.queues import counted_today
from runs.services.queues import MAX_COUNTED, note_counts
from runs.states import LiveState


class LimitsSerializer(serializers.Serializer[Tenant]):
    max_running = serializers.IntegerField(allow_null=True, help_text="Runs queued or running at once.")
    rate_limit = serializers.FloatField(allow_null=True, help_text="Runs a second.")
    daily_quota = serializers.IntegerField(allow_null=True, help_text="Runs handed over on a day (UTC).")
    retry_budget = serializers.IntegerField(
        allow_null=True, help_text="Retries let go a minute, over all pools."
    )


class QueueSerializer(serializers.Serializer[Queue]):
    pool = serializers.CharField(source="pool.slug")
    reason = ReasonCodeField()
    reason_text = ReasonTextField()
    runs = PlainField(
        obj(
            {state: number() for state in LiveState.values},
            title="RunsByState",
            description=f"Unfinished runs by state. {MAX_COUNTED:,}: so many or more.",
        ),
        source="runs_by_state",
    )
    oldest_waiting_at = InstantField(
        allow_null=True,
        help_text="Since when the oldest of the ready and queued runs may go.",
    )
    limits = LimitsSerializer(source="tenant")
    weight = serializers.IntegerField(
        source="tenant.weight", help_text="Of the pool's slots, a share by weight is yours."
    )
    handed_over_today = serializers.SerializerMethodField(help_text="Counted while there is a daily quota.")

    def get_handed_over_today(self, queue: Any) -> int | None:
        if queue.tenant.daily_quota is None:
            return None
        return counted_today(queue.day, queue.day_count, queue.now)


@extend_schema_view(get=operation("list_queues", "Where your runs queue, pool by pool", errors=(400,)))
class Queues(ListView):
    tag = "queues"
    queryset = Queue.objects.select_related("pool", "tenant").annotate(now=Now())
    serializer_class = QueueSerializer
    newest_first = ("created_at", "broker_queue")

    def paginate_queryset(self, queryset: Any) -> Any:
        page = super().paginate_queryset(queryset) or []
        note_counts(page)
        return page
