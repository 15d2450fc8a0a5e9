"""Unfinished runs in the admin, and the base of both lists of runs."""

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from jobs.admin.base import LongListAdmin, by_choice, related
from jobs.admin.columns import column, label_column, link_column, moment_column
from jobs.admin.html import link, page_of
from jobs.admin.permissions import is_superuser, own_tenants
from jobs.models import Job
from runs.admin.list_filters import WorkerFilter, as_uuid, go_to_run, workers_seen
from runs.admin.run_detail import COLOURS
from runs.models import WorkerNode
from runs.services.explain import note_waiting
from runs.states import LiveState

JOBS_FOUND = 100


class RunListAdmin(LongListAdmin):
    search_help_text = "Search by name of the job or id of the run"

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], text: str) -> Any:
        """Search by the id of a run or by the name of its job, which may be deleted."""
        if not text.strip():
            return queryset, False
        if identity := as_uuid(text):
            return queryset.filter(pk=identity), False
        jobs = Job.objects.filter(name__icontains=text.strip())
        if not is_superuser(request):
            jobs = jobs.filter(tenant__in=own_tenants(request))
        return queryset.filter(job_id__in=list(jobs.values_list("pk", flat=True)[:JOBS_FOUND])), False


class LiveRunAdmin(RunListAdmin):
    list_display = (
        "planned",
        "state_column",
        "job_column",
        "tenant",
        "pool",
        "worker_column",
        "attempt",
        "reason_column",
        "next_check",
    )
    list_filter = (*by_choice("state"), *related("tenant", "pool", "job"), WorkerFilter)
    search_fields = ("pk",)
    ordering = ("-pk",)
    prefetched = ("job", "tenant", "pool")

    planned = moment_column("planned_at", "planned at")
    state_column = label_column("state", COLOURS)
    job_column = link_column("job")
    worker_column = column("worker", lambda live: worker_link(live))
    reason_column = column("reason", lambda live: live.describe_reason())
    next_check = moment_column("wake_at", "next check")

    def complete_page(self, request: HttpRequest, rows: list[Any]) -> None:
        """Read the workers of a page of running runs by one query, and why the others wait by another."""
        note_waiting(rows)
        running = {live.worker for live in rows if live.state == LiveState.RUNNING}
        nodes = WorkerNode.objects.in_bulk(running)
        seen = set(workers_seen(request).filter(pk__in=running).values_list("pk", flat=True))
        for live in rows:
            live.node = nodes.get(live.worker) if live.state == LiveState.RUNNING else None
            live.may_see_node = live.worker in seen

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        return go_to_run(object_id)


def worker_link(live: Any) -> SafeString | str:
    if live.node is None:
        return ""
    return link(page_of(live.node), live.node) if live.may_see_node else str(live.node)
