"""Serve the planned times of a job that got no run of their own, and why."""

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers

from jobs.api.jobs import find_job
from jobs.api.openapi import operation
from jobs.api.serializers import InstantField, PlainField
from jobs.api.views import ListView
from jobs.validation.schema import text
from runs.api.explain import SuspendedSpanSerializer
from runs.models import MissedSpan, SpanState


class MissedSpanSerializer(SuspendedSpanSerializer):
    state = PlainField(
        text(
            "open: the suspension goes on; working: runs are being made of them; settled: it is decided.",
            enum=list(SpanState.values),
        )
    )
    policy = serializers.CharField(help_text="The catch-up policy that decides about them; empty: none does.")
    runs_made = serializers.IntegerField(source="made", help_text="Runs made of them so far.")
    version = serializers.IntegerField(help_text="Of the job: its schedule planned them.")
    created_at = InstantField()


@extend_schema_view(
    get=operation(
        "list_missed_times",
        "Planned times of a job without a run, the latest first",
        errors=(400, 404),
        about="Each row stands for the planned times from `begins_at` until before `ends_at`, and says why they have "
        "no run. With the runs they are all planned times that have passed.",
    )
)
class MissedSpans(ListView):
    tag = "jobs"
    queryset = MissedSpan.objects.all()
    serializer_class = MissedSpanSerializer
    # Spans of a job do not overlap.
    newest_first = ("begins_at", "created_at")

    def get_queryset(self) -> QuerySet[MissedSpan]:
        return super().get_queryset().filter(job=find_job(self.request, self.kwargs["job_id"]))
