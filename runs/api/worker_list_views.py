"""The workers that serve a tenant: whether they live, how busy they are, which targets they know."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import tenant_of
from jobs.api.representation import instant
from jobs.api.views import paged, refuse_unknown_query
from jobs.input_checks import listed, refused, shown
from runs.api import schema
from runs.models import NodeState, WorkerNode


class Workers(APIView):
    newest_first = ("started_at", "incarnation")

    @schema.list_workers
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("state", "pool", "limit", "cursor"))
        nodes = WorkerNode.objects.of_teams([tenant_of(request)]).select_related("pool", "tenant")
        for state in request.query_params.getlist("state"):
            if state not in NodeState.values:
                raise refused("state", f"{shown(state)} is not a state", listed(NodeState.values, "one of"))
        if states := request.query_params.getlist("state"):
            nodes = nodes.filter(state__in=states)
        if pool := request.query_params.get("pool"):
            nodes = nodes.filter(pool__slug=pool)
        return paged(self, request, nodes, lambda page: [worker_json(node) for node in page])


def worker_json(node: WorkerNode) -> dict[str, Any]:
    return {
        "id": str(node.pk),
        "name": node.name,
        "pool": node.pool.slug,
        "state": node.state,
        "slots": node.slots,
        "busy": node.busy,
        "foreign_busy": node.foreign_busy,
        "known_targets": known_targets(node),
        "host": node.host,
        "region": node.region,
        "version": node.version,
        "started_at": instant(node.started_at),
        "last_heartbeat_at": instant(node.last_beat_at),
        "lease_seconds": node.lease_seconds,
        "clock_ahead_ms": node.skew_ms,
    }


def known_targets(node: WorkerNode) -> list[str]:
    """All that a team's own workers know; of the platform's what their pool exports."""
    if node.tenant is not None:
        return list(node.known_targets)
    exported = {*node.pool.exported_tasks, *(f"kind:{kind}" for kind in node.pool.exported_kinds)}
    return [target for target in node.known_targets if target in exported]
