"""Workers in the admin: whether they live, how busy they are, and how far their clocks are off."""

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from jobs.display import moment
from jobs.staff import BAD, BUSY, GOOD, QUIET, LookOnly, OwnRelated, label, own_tenants
from runs.models import NodeState, WorkerNode
from runs.scheduler_admin import skew_in_words

NODE_COLOURS = {
    NodeState.ACTIVE: GOOD,
    NodeState.DRAINING: BUSY,
    NodeState.LOST: BAD,
    NodeState.LEFT: QUIET,
}


class WorkerNodeAdmin(LookOnly):
    list_display = (
        "name",
        "pool",
        "of_tenant",
        "shown_state",
        "occupancy",
        "beat",
        "clock",
        "host",
        "version",
        "started",
    )
    list_filter = (("state", ChoicesDropdownFilter), ("pool", OwnRelated))
    list_select_related = ("pool", "tenant")
    search_fields = ("name", "host")
    ordering = ("-last_beat_at",)
    exclude = ("held",)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        """One's own, and those of pools of one's own: what runs on a shared machine is the platform's business."""
        own = own_tenants(request)
        of_the_platform = Q(tenant=None, pool__shared=False, pool__tenants__in=own)
        return rows.filter(Q(tenant__in=own) | of_the_platform).distinct()

    def tenant_of(self, row: Any) -> int | None:
        return None

    @admin.display(description="for", ordering="tenant")
    def of_tenant(self, node: WorkerNode) -> str:
        return str(node.tenant) if node.tenant else "all"

    @admin.display(description="state", ordering="state")
    def shown_state(self, node: WorkerNode) -> SafeString:
        return label(node.state, NODE_COLOURS[NodeState(node.state)])

    @admin.display(description="slots busy")
    def occupancy(self, node: WorkerNode) -> str:
        foreign = f" + {node.foreign_busy} others" if node.foreign_busy else ""
        return f"{node.busy} of {node.slots}{foreign}"

    @admin.display(description="clock ahead", ordering="skew_ms")
    def clock(self, node: WorkerNode) -> str:
        return skew_in_words(node.skew_ms)

    @admin.display(description="last heartbeat", ordering="last_beat_at")
    def beat(self, node: WorkerNode) -> SafeString | str:
        return moment(node.last_beat_at)

    @admin.display(description="started", ordering="started_at")
    def started(self, node: WorkerNode) -> SafeString | str:
        return moment(node.started_at)
