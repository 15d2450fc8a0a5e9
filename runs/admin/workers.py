"""Workers in the admin: their state, their busy slots and how far their clocks are off."""

from datetime import timedelta
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest

from jobs.admin.base import ReadOnlyAdmin, by_choice, related
from jobs.admin.columns import column, label_column, moment_column
from jobs.admin.formatting import brief
from jobs.admin.html import BAD, BUSY, GOOD, QUIET, link, list_of, page_of
from jobs.admin.permissions import own_tenants
from runs.admin.run_detail import took
from runs.admin.schedulers import describe_skew
from runs.models import Attempt, AttemptOutcome, LiveRun, NodeState, Run, WorkerNode
from runs.states import LiveState

NODE_COLOURS = {NodeState.ACTIVE: GOOD, NodeState.DRAINING: BUSY, NodeState.LOST: BAD, NodeState.LEFT: QUIET}
WENT_WRONG = {
    AttemptOutcome.FAILED: "failed",
    AttemptOutcome.TIMEOUT: "timed out",
    AttemptOutcome.LOST: "were lost",
}
CLAIMS_SHOWN = 20
RECENT = "1h"


class WorkerNodeAdmin(ReadOnlyAdmin):
    tenant_path = ""
    list_display = (
        "name",
        "pool",
        "of_tenant",
        "state_column",
        "occupancy",
        "beat",
        "clock",
        "host",
        "version",
        "started",
    )
    list_filter = (*by_choice("state"), *related("pool"))
    list_select_related = ("pool", "tenant")
    search_fields = ("name", "host")
    ordering = ("-last_beat_at",)
    more_fields = (("lease_column", "held_back"), "known_targets", ("pid", "region", "incarnation"))
    change_form_outer_before_template = "runs/worker_page.html"

    of_tenant = column("tenant", lambda node: str(node.tenant) if node.tenant else "all", ordering="tenant")
    state_column = label_column("state", NODE_COLOURS)
    occupancy = column("slots busy", lambda node: describe_occupancy(node))
    clock = column("clock ahead", lambda node: describe_skew(node.skew_ms), ordering="skew_ms")
    beat = moment_column("last_beat_at", "last heartbeat")
    lease_column = column("lease", lambda node: brief(timedelta(seconds=node.lease_seconds)))
    held_back = moment_column("held_until", "recovery held until")
    started = moment_column("started_at")

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        ended = partial(list_of, Attempt, worker__exact=row.pk, window=RECENT)
        return {
            "worker": row,
            "claims": [claim_in_a_line(live) for live in self.claims(request, row)],
            "links": [
                link(list_of(LiveRun, worker=row.pk), "All its running runs"),
                link(ended(), "Attempts of the last hour"),
                *(
                    link(ended(outcome__exact=how), f"Attempts that {what}")
                    for how, what in WENT_WRONG.items()
                ),
            ],
        }

    def claims(self, request: HttpRequest, node: WorkerNode) -> QuerySet[Any]:
        """Return its running runs, the longest first; a member sees those of their tenants."""
        seen: QuerySet[Any] = self.admin_site.get_model_admin(LiveRun).get_queryset(request)
        return seen.filter(worker=node.pk, state=LiveState.RUNNING).order_by("claimed_at")[:CLAIMS_SHOWN]

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        return WorkerNode.objects.of_teams(own_tenants(request))


def describe_occupancy(node: WorkerNode) -> str:
    foreign = f" + {node.foreign_busy} others" if node.foreign_busy else ""
    return f"{node.busy} of {node.slots}{foreign}"


def claim_in_a_line(live: LiveRun) -> dict[str, Any]:
    return {
        "run": link(page_of(Run(pk=live.pk)), f"{live.planned_at:%-d %b %H:%M:%S}"),
        "job": link(page_of(live.job), live.job),
        "tenant": live.tenant,
        "took": took(live.claimed_at, None),
    }
