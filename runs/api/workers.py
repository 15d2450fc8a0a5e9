"""Serve the workers of a tenant: whether they live, how busy they are, which targets they know."""

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers

from jobs.api.authentication import tenant_of
from jobs.api.filters import NamedFilterSet, QueryFilter, choice
from jobs.api.openapi import operation
from jobs.api.serializers import InstantField, PlainField
from jobs.api.views import ListView
from jobs.validation.schema import text
from runs.models import NodeState, WorkerNode


class WorkerFilters(NamedFilterSet):
    state = choice(
        "The state; several are alternatives.",
        NodeState.values,
        "is not a state",
        many=True,
        lookup_expr="in",
    )
    pool = QueryFilter("The pool.", field_name="pool__slug")


class WorkerSerializer(serializers.Serializer[WorkerNode]):
    id = serializers.UUIDField(source="incarnation", help_text="Of this start of it.")
    name = serializers.CharField()
    pool = serializers.CharField(source="pool.slug")
    state = PlainField(text(enum=list(NodeState.values)))
    slots = serializers.IntegerField()
    busy = serializers.IntegerField(help_text="Slots with runs.")
    foreign_busy = serializers.IntegerField(help_text="Slots with tasks of its own code base.")
    known_targets = serializers.SerializerMethodField(help_text="Tasks by name, and kinds: `kind:http`.")
    host = serializers.CharField()
    region = serializers.CharField()
    version = serializers.CharField(help_text="Of the package `beatkeeper` that it runs.")
    started_at = InstantField()
    last_heartbeat_at = InstantField(source="last_beat_at")
    lease_seconds = serializers.FloatField(help_text="Silent for longer, it is lost.")
    clock_ahead_ms = serializers.FloatField(
        source="skew_ms", allow_null=True, help_text="How far its clock is ahead of the platform's."
    )

    def get_known_targets(self, node: WorkerNode) -> list[str]:
        """Return all that a team's own worker knows; of one of the platform's, what its pool exports."""
        if node.tenant is not None:
            return list(node.known_targets)
        exported = {*node.pool.exported_tasks, *(f"kind:{kind}" for kind in node.pool.exported_kinds)}
        return [target for target in node.known_targets if target in exported]


@extend_schema_view(
    get=operation(
        "list_workers",
        "Workers with your keys, and those of pools of your own, the latest started first",
        errors=(400,),
    )
)
class Workers(ListView):
    tag = "workers"
    queryset = WorkerNode.objects.all()
    serializer_class = WorkerSerializer
    filterset_class = WorkerFilters
    newest_first = ("started_at", "incarnation")

    def get_queryset(self) -> QuerySet[WorkerNode]:
        return WorkerNode.objects.of_teams([tenant_of(self.request)]).select_related("pool", "tenant")
