"""Serve the pools that are open to a tenant: what they export, and whether workers of them live."""

from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers

from jobs.api.authentication import tenant_of
from jobs.api.openapi import operation
from jobs.api.views import ListView
from jobs.models import Pool
from runs.models import WorkerNode


class PoolSerializer(serializers.Serializer[Pool]):
    name = serializers.CharField(source="slug", help_text="As jobs name it.")
    description = serializers.CharField()
    shared = serializers.BooleanField(help_text="Open to every tenant.")
    exported_kinds = serializers.ListField(
        child=serializers.CharField(), help_text="Kinds of targets that jobs may have there."
    )
    exported_tasks = serializers.ListField(
        child=serializers.CharField(), help_text="Celery tasks that jobs may have there."
    )
    live_workers = serializers.IntegerField(help_text="That take your runs now.")


@extend_schema_view(
    get=operation("list_pools", "Pools that are open to you, newest first", errors=(400,)),
)
class Pools(ListView):
    tag = "access"
    queryset = Pool.objects.all()
    serializer_class = PoolSerializer
    newest_first = ("created_at", "slug")

    def get_queryset(self) -> QuerySet[Pool]:
        tenant = tenant_of(self.request)
        nodes = WorkerNode.objects.serving(tenant).living().filter(pool=OuterRef("pk"))
        counted = nodes.values("pool").annotate(count=Count("pk")).values("count")
        return Pool.objects.open_to(tenant).annotate(live_workers=Coalesce(Subquery(counted), 0))
