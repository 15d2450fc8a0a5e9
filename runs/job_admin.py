"""Jobs in the admin, with what only runs know of them: their latest outcome, and running them now."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db import connection
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import DropdownFilter

from jobs import stops
from jobs.database_clock import database_now
from jobs.display import NOTHING
from jobs.job_admin import JobAdmin
from jobs.models import Job, JobStatus
from jobs.staff import (
    WARNING,
    UncountedList,
    button,
    found_or_missing,
    go_to,
    label,
    link,
    list_of,
    page_of,
    sentence,
    telling,
)
from runs import breakers, services
from runs.models import BreakerState, DeadLetter, Lane, LiveRun, MissedSpan, Run
from runs.run_lists import WINDOWS, window_of
from runs.run_page import lasted, state_label, state_of
from scheduler_project.sdk.sql import statements

SQL = statements(Path(__file__).parent / "sql" / "admin.sql")
HOT = "7d"
RUNS_SHOWN = 5
BREAKER_WORDS = {BreakerState.OPEN: "breaker open", BreakerState.HALF_OPEN: "breaker half open"}


def latest_runs(jobs: Sequence[UUID], window: str = HOT) -> dict[UUID, dict[str, Any]]:
    """One statement for a page of jobs, bounded to the days it may touch."""
    first, beyond = window_of(window)
    with connection.cursor() as cursor:
        cursor.execute(SQL["latest_runs"], {"jobs": list(jobs), "first": first, "beyond": beyond})
        names = [column.name for column in cursor.description]
        return {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}


class JobsWithOutcomes(UncountedList):
    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list: list[Any] = list(self.result_list)
        jobs = [job.pk for job in self.result_list]
        latest, held = latest_runs(jobs), breakers.not_closed().in_bulk(jobs)
        for job in self.result_list:
            job.latest_run, job.open_breaker = latest.get(job.pk), held.get(job.pk)


class HeldBy(DropdownFilter):  # type: ignore[misc]
    title = "held by"
    parameter_name = "held_by"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return [("breaker", "its breaker")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() != "breaker":
            return queryset
        return queryset.filter(pk__in=breakers.not_closed().values("job"))


class JobWithRuns(JobAdmin):
    list_display = (
        "shown_name",
        "tenant",
        "shown_status",
        "schedule",
        "next_run",
        "latest",
        "pool",
        "priority",
    )
    actions = ("run_chosen", "pause_chosen", "resume_chosen")
    actions_detail = ["run_now", "close_breaker", "pause", "resume", "change_time", "cancel", "delete"]
    actions_row = ["run_now", "pause", "resume", "cancel"]
    change_form_outer_before_template = "runs/job_summary.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return JobsWithOutcomes

    def get_list_filter(self, request: HttpRequest) -> Any:
        return (*super().get_list_filter(request), HeldBy)

    def useless_buttons(self, job: Job) -> set[str]:
        useless = super().useless_buttons(job)
        breaker = breakers.breaker_of(job)
        if breaker is None or breaker.state == BreakerState.CLOSED:
            useless |= {"close_breaker"}
        return useless | {"run_now"} if job.status == JobStatus.CANCELLED else useless

    def summary(self, job: Job) -> dict[str, Any]:
        first, beyond = window_of(HOT)
        newest = Run.objects.filter(job=job, pk__gte=first, pk__lt=beyond).order_by("-pk")
        runs = list(newest.prefetch_related("live")[:RUNS_SHOWN])
        known = super().summary(job)
        return {
            **known,
            "why": [*known["why"], *lane_of(job), *breaker_in_words(job)],
            "runs": [in_a_line(run) for run in runs],
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

    @admin.display(description="status", ordering="status")
    def shown_status(self, job: Any) -> SafeString:
        breaker = getattr(job, "open_breaker", None)
        shown = super().shown_status(job)
        return format_html("{} {}", shown, label(BREAKER_WORDS[breaker.state], WARNING)) if breaker else shown

    @admin.display(description="latest run")
    def latest(self, job: Any) -> SafeString | str:
        run = getattr(job, "latest_run", None)
        return link(page_of(Run(pk=run["id"])), state_label(run["state"] or "unknown")) if run else NOTHING

    @button(
        "Run now",
        icon="bolt",
        asks="One more run of the present version, besides the planned ones.",
        variant="primary",
    )
    def run_now(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target = list_of(Job)
        with telling(request, "A run is on its way."):
            job = found_or_missing(self.get_object(request, object_id))
            target = page_of(job)
            target = page_of(services.run_now(job, reason=form.cleaned_data["reason"]))
        return go_to(request, target)

    @button(
        "Close breaker",
        icon="electrical_services",
        asks="Do so when you know that what the job calls works again: the runs that were held go at once. If it does "
        "not, they fail and the breaker opens again. Left alone, one run tries after the cool-down.",
    )
    def close_breaker(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target = list_of(Job)
        with telling(request, "The breaker is closed; what it held goes."):
            job = found_or_missing(self.get_object(request, object_id))
            target = page_of(job)
            breakers.close_breaker(job, form.cleaned_data["reason"])
        return go_to(request, target)

    @admin.action(description="Run the chosen jobs now", permissions=["pause"])
    def run_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, services.run_now, "on their way")


def lane_of(job: Job) -> list[SafeString]:
    """Why nothing goes there, when the lane says so; a stop was named before."""
    lane = Lane.objects.filter(pool=job.pool_id, tenant=job.tenant_id).exclude(reason="").first()
    if lane is None or stops.of_job(job, database_now()):
        return []
    return [format_html("{}: {}", link(page_of(lane), "Its lane cannot go"), lane.reason)]


def breaker_in_words(job: Job) -> list[str]:
    breaker = breakers.breaker_of(job)
    words = breakers.in_words(breaker) if breaker else ""
    return [sentence(words)] if words else []


def in_a_line(run: Run) -> dict[str, Any]:
    return {
        "run": link(page_of(run), f"{run.planned_at:%-d %b %H:%M:%S}"),
        "state": state_label(state_of(run)),
        "took": lasted(run),
        "error": run.error_line,
    }
