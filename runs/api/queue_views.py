"""Where a tenant's runs queue, pool by pool: why nothing goes there, and how much of its limits is left."""

from typing import Any

from django.db.models.functions import Now
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import tenant_of
from jobs.api.views import paged, refuse_unknown_query
from runs.api import schema
from runs.lanes import counted_today
from runs.models import Lane


class Queues(APIView):
    newest_first = ("id",)

    @schema.list_queues
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("limit", "cursor"))
        lanes = Lane.objects.filter(tenant=tenant_of(request)).select_related("pool", "tenant")
        return paged(
            self, request, lanes.annotate(now=Now()), lambda page: [queue_json(lane) for lane in page]
        )


def queue_json(lane: Any) -> dict[str, Any]:
    tenant = lane.tenant
    return {
        "pool": lane.pool.slug,
        "reason": lane.reason,
        "limits": {
            "max_running": tenant.max_running,
            "rate_limit": tenant.rate_limit,
            "daily_quota": tenant.daily_quota,
            "retry_budget": tenant.retry_budget,
        },
        "weight": tenant.weight,
        # Counted while there is a quota.
        "handed_over_today": None
        if tenant.daily_quota is None
        else counted_today(lane.day, lane.day_count, lane.now),
    }
