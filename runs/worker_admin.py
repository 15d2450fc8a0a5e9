"""Workers in the admin: whether they live, how busy they are, and how far their clocks are off."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from jobs.display import brief, moment
from jobs.staff import (
    BAD,
    BUSY,
    GOOD,
    QUIET,
    LookOnly,
    OwnRelated,
    label,
    link,
    list_of,
    own_tenants,
    page_of,
)
from runs.models import Attempt, AttemptOutcome, LiveRun, NodeState, Run, WorkerNode
from runs.run_page import took
from runs.scheduler_admin import skew_in_words
from runs.states import LiveState

NODE_COLOURS = {
    NodeState.ACTIVE: GOOD,
    NodeState.DRAINING: BUSY,
    NodeState.LOST: BAD,
    NodeState.LEFT: QUIET,
}


WENT_WRONG = {
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.TIMEOUT: "took too long",
    AttemptOutcome.LOST: "were lost",
}
CLAIMS_SHOWN = 20
LATELY = "1h"


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
    fields = (
        "pool",
        "of_tenant",
        "shown_state",
        "occupancy",
        "beat",
        "shown_lease",
        "held_back",
        "clock",
        "known_targets",
        "host",
        "pid",
        "region",
        "version",
        "started",
        "incarnation",
    )
    readonly_fields = fields
    change_form_outer_before_template = "runs/worker_page.html"

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        node = self.get_object(request, object_id)
        extra = {**(extra_context or {}), **(self.page(request, node) if node else {})}
        return super().change_view(request, object_id, form_url, extra)

    def page(self, request: HttpRequest, node: WorkerNode) -> dict[str, Any]:
        return {
            "worker": node,
            "claims": [claim_in_a_line(live) for live in self.claims(request, node)],
            "links": [
                link(list_of(LiveRun, worker=node.pk), "All it runs now"),
                link(list_of(Attempt, worker__exact=node.pk, window=LATELY), "Its attempts of the last hour"),
                *(link(ended(node, how), f"Those that {words}") for how, words in WENT_WRONG.items()),
            ],
        }

    def claims(self, request: HttpRequest, node: WorkerNode) -> QuerySet[Any]:
        """The longest first. Of a team that shares its pool with others, a member sees the runs of their own."""
        seen: QuerySet[Any] = self.admin_site.get_model_admin(LiveRun).get_queryset(request)
        return seen.filter(worker=node.pk, state=LiveState.RUNNING).order_by("claimed_at")[:CLAIMS_SHOWN]

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return WorkerNode.objects.of_teams(own_tenants(request))

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

    @admin.display(description="lost after a silence of")
    def shown_lease(self, node: WorkerNode) -> str:
        return brief(timedelta(seconds=node.lease_seconds))

    @admin.display(description="silent with others, so held until")
    def held_back(self, node: WorkerNode) -> SafeString | str:
        return moment(node.held_until)

    @admin.display(description="started", ordering="started_at")
    def started(self, node: WorkerNode) -> SafeString | str:
        return moment(node.started_at)


def claim_in_a_line(live: LiveRun) -> dict[str, Any]:
    return {
        "run": link(page_of(Run(pk=live.pk)), f"{live.planned_at:%-d %b %H:%M:%S}"),
        "job": link(page_of(live.job), live.job),
        "tenant": live.tenant,
        "took": took(live.claimed_at, None),
    }


def ended(node: WorkerNode, outcome: str) -> str:
    return list_of(Attempt, worker__exact=node.pk, outcome__exact=outcome, window=LATELY)
