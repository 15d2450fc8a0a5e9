"""Jobs in the admin with their runs: the latest outcome, what blocks them, and running them now."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter

from jobs.admin.buttons import button
from jobs.admin.columns import column
from jobs.admin.formatting import status_label
from jobs.admin.forms.dialogs import describe_missed
from jobs.admin.html import WARNING, label, link, list_of, page_of
from jobs.admin.jobs import JobAdmin
from jobs.clock import database_now
from jobs.models import Job, JobStatus
from jobs.services.missed import missed_so_far
from runs import history
from runs.admin.list_filters import WINDOWS, window_of
from runs.admin.run_detail import lasted, obstacle_line, state_label
from runs.models import BreakerState, DeadLetter, LiveRun, MissedSpan, Run
from runs.services import breakers
from runs.services import runs as services
from runs.services.explain import obstacles_of_job
from runs.sql import fetch

HOT = "7d"
RUNS_SHOWN = 5
BREAKER_WORDS = {BreakerState.OPEN: "breaker open", BreakerState.HALF_OPEN: "breaker half open"}


def latest_runs(jobs: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Read the latest run of each job by one statement, from the partitions of the last days."""
    first, beyond = window_of(HOT)
    return {row["job_id"]: row for row in fetch("latest_runs", jobs=list(jobs), first=first, beyond=beyond)}


class BreakerFilter(DropdownFilter):  # type: ignore[misc]
    title = "held by"
    parameter_name = "held_by"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("breaker", "its breaker")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() != "breaker":
            return queryset
        return queryset.filter(pk__in=breakers.not_closed().values("job"))


class JobWithRunsAdmin(JobAdmin):
    list_display = (
        "name_column",
        "tenant",
        "status_column",
        "schedule",
        "next_run",
        "latest",
        "pool",
        "priority",
    )
    status_column = column("status", lambda job: status_with_breaker(job), ordering="status")
    latest = column("latest run", lambda job: latest_run(job))
    actions = ("run_chosen", "pause_chosen", "resume_chosen")
    actions_detail = ["run_now", "close_breaker", "pause", "resume", "set_override", "cancel", "delete"]
    actions_row = ["run_now", "pause", "resume", "cancel"]
    change_form_outer_before_template = "runs/job_summary.html"

    def complete_page(self, request: HttpRequest, rows: list[Any]) -> None:
        jobs = [job.pk for job in rows]
        latest, held = latest_runs(jobs), breakers.not_closed().in_bulk(jobs)
        for job in rows:
            job.latest_run, job.open_breaker = latest.get(job.pk), held.get(job.pk)

    def get_list_filter(self, request: HttpRequest) -> Any:
        return (*super().get_list_filter(request), BreakerFilter)

    def hidden_buttons(self, row: Any) -> set[str]:
        hidden = super().hidden_buttons(row)
        if not breakers.not_closed().filter(job=row).exists():
            hidden.add("close_breaker")
        return hidden | {"run_now"} if row.status == JobStatus.CANCELLED else hidden

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        first, beyond = window_of(HOT)
        runs = history.runs().filter(job=row, pk__gte=first, pk__lt=beyond).order_by("-pk")
        return {
            **super().page_context(request, row),
            "why": why_not(row),
            "runs": [in_a_line(run) for run in runs[:RUNS_SHOWN]],
            "hot": WINDOWS[HOT][0].lower(),
        }

    def links(self, job: Job) -> list[SafeString]:
        return [
            link(list_of(Run, job__id__exact=job.pk, window=HOT), "Runs"),
            link(list_of(LiveRun, job__id__exact=job.pk), "Unfinished runs"),
            link(list_of(DeadLetter, job__id__exact=job.pk), "Dead letters"),
            link(list_of(MissedSpan, job__id__exact=job.pk), "Missed times"),
            *super().links(job),
        ]

    @button(
        "Run now",
        "bolt",
        "One more run of the current version, in addition to the planned ones.",
        variant="primary",
    )
    def run_now(self, job: Job, given: dict[str, Any]) -> tuple[str, str]:
        return "The run is created.", page_of(services.run_now(job, reason=given["reason"]))

    @button(
        "Close breaker",
        "electrical_services",
        "Close it when the service that the job calls works again: the held runs go at once. If it does not work, "
        "they fail and the breaker opens again. Without this, one run tries after the cool-down.",
    )
    def close_breaker(self, job: Job, given: dict[str, Any]) -> str:
        breakers.close_breaker(job, given["reason"])
        return "The breaker is closed; the runs that it held go."

    @admin.action(description="Run the chosen jobs now", permissions=["operate"])
    def run_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, services.run_now, "on their way")


def status_with_breaker(job: Any) -> SafeString:
    breaker, status = getattr(job, "open_breaker", None), status_label(job)
    return format_html("{} {}", status, label(BREAKER_WORDS[breaker.state], WARNING)) if breaker else status


def latest_run(job: Any) -> SafeString | str:
    run = getattr(job, "latest_run", None)
    return link(page_of(Run(pk=run["id"])), state_label(run["state"] or "")) if run else ""


def why_not(job: Job) -> list[SafeString]:
    """Render the obstacles of a job, and the planned times that it has missed."""
    now = database_now()
    missed = missed_so_far(job, job.spec, now)
    return [
        *(obstacle_line(found) for found in obstacles_of_job(job, now)),
        *([format_html("{}", describe_missed(missed))] if missed else []),
    ]


def in_a_line(run: Run) -> dict[str, Any]:
    return {
        "run": link(page_of(run), f"{run.planned_at:%-d %b %H:%M:%S}"),
        "state": state_label(run.current_state),
        "took": lasted(run),
        "error": run.error_line,
    }
