"""Runs in the admin: read only, except for cancel and retry, which call the services."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from jobs.admin.base import by_choice, related
from jobs.admin.buttons import button
from jobs.admin.columns import column, json_column, link_column, moment_column
from jobs.admin.formatting import moment
from jobs.admin.html import audit_trail, link, list_of, on_one_line, page_of
from jobs.clock import database_now
from jobs.models import JobVersion
from runs.admin import run_detail
from runs.admin.dead_letter_groups import group_page
from runs.admin.list_filters import RunStateFilter, WindowFilter, chips
from runs.admin.live_runs import RunListAdmin
from runs.logs import NoSuchAttempt, lines, read_log, without_style
from runs.models import Run
from runs.services import runs as services
from runs.services.dead_letters import dead_letter_of
from runs.services.explain import live_rows, note_waiting, obstacles_of_run
from runs.states import FinalState, LiveState
from scheduler_project.sdk.logs.store import LogMissing

ATTEMPT_HEADINGS = ("Attempt", "Outcome", "Started", "Took", "Worker", "Error", "Then")

DETAILS = (
    ("id", "version_column"),
    ("trigger", "requested_by"),
    "requested_reason",
    ("created", "retry_of_column"),
    ("priority", "traceparent"),
    ("error_class", "error_type"),
    "fingerprint",
    "input_column",
    "result_column",
)


class RunAdmin(RunListAdmin):
    list_display = (
        "planned",
        "state_column",
        "job_column",
        "tenant",
        "trigger",
        "tries",
        "duration",
        "error_or_reason",
    )
    list_filter = (
        WindowFilter,
        RunStateFilter,
        *by_choice("trigger"),
        *related("tenant", "job", "pool"),
    )
    search_fields = ("id",)
    ordering = ("-id",)
    prefetched = ("live", "job", "tenant", "pool")
    actions_detail = ["cancel", "retry"]
    actions_row = ["cancel", "retry"]
    list_before_template = "runs/chips.html"
    change_form_outer_before_template = "runs/run_page.html"
    fieldsets = (("Details", {"fields": DETAILS}),)

    planned = moment_column("planned_at", "planned at")
    state_column = column("state", lambda run: run_detail.state_label(run.current_state))
    job_column = link_column("job")
    tries = column("attempts", lambda run: run.live_or_none.attempt if run.live_or_none else run.attempts)
    duration = column("took", lambda run: on_one_line(run_detail.lasted(run)))
    error_or_reason = column(
        "error or reason", lambda run: Truncator(run_detail.reason_of(run) or run.error_line).chars(90)
    )
    version_column = column("version", lambda run: version_link(run))
    created = moment_column("created_at")
    retry_of_column = column(
        "retry of", lambda run: run.retry_of and link(page_of(Run(pk=run.retry_of)), run.retry_of)
    )
    input_column = json_column("input")
    result_column = json_column("result")

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(self.whole_log)
        return [path("<path:object_id>/log/", view, name="beatkeeper_runs_run_log"), *super().get_urls()]

    def whole_log(self, request: HttpRequest, object_id: str) -> HttpResponse:
        run = self.get_object(request, object_id)
        if run is None:
            raise Http404
        try:
            log = lines(read_log(run, requested_attempt(request)))
        except (LogMissing, NoSuchAttempt) as missing:
            raise Http404 from missing
        text = "".join(
            f"{line.at} {line.level or line.stream:<8} {without_style(line.with_logger)}\n" for line in log
        )
        return HttpResponse(text, content_type="text/plain; charset=utf-8")

    def complete_page(self, request: HttpRequest, rows: list[Any]) -> None:
        note_waiting(live_rows(rows))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {**(extra_context or {}), "chips": chips(request)})

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        run = self.get_object(request, object_id)
        if run and run.state and request.headers.get("HX-Request"):
            # The run ended while the page polled: reload it, because other buttons apply now.
            return HttpResponse(headers={"HX-Refresh": "true"})
        return super().change_view(request, object_id, *args, **kwargs)

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        run, number = row, requested_attempt(request)
        return {
            "title": f"Run of {run.job}",
            "subtitle": None,
            "run": run,
            "unfinished": run.state is None,
            "details": details(run),
            "error": run.error_line if run.state == FinalState.DEAD else "",
            "why": [run_detail.obstacle_line(found) for found in obstacles_of_run(run, database_now())],
            "reason": run_detail.reason_of(run),
            "links": self.links(run),
            "attempt_headings": ATTEMPT_HEADINGS,
            "attempts": run_detail.attempt_rows(run),
            "number": number,
            "log": run_detail.log_tail(run, number),
            "whole_log": f"{page_of(run).removesuffix('change/')}log/{f'?attempt={number}' if number else ''}",
        }

    def links(self, run: Run) -> list[SafeString]:
        letter = dead_letter_of(run)
        return [
            link(page_of(run.job), f"Job {run.job}"),
            link(list_of(Run, job__id__exact=run.job_id, window="7d"), "All runs of the job"),
            audit_trail(run),
            *([link(group_page(letter), "Dead letters with the same error")] if letter else []),
        ]

    def hidden_buttons(self, row: Any) -> set[str]:
        """Offer retry for finished runs, cancel for unfinished ones, both between two attempts."""
        if row.state is not None:
            return {"cancel"}
        return set() if row.current_state == LiveState.DELAYED else {"retry"}

    @button(
        "Cancel run",
        "block",
        "A waiting run ends at once; the worker of a running one gets a request to stop it.",
        variant="danger",
    )
    def cancel(self, run: Run, given: dict[str, Any]) -> str:
        done = services.cancel_run(run, given["reason"])
        return "The run is cancelled." if done.state else "Its worker gets a request to stop it."

    @button(
        "Retry", "replay", "A new run of the same version and input; a run between two attempts goes now."
    )
    def retry(self, run: Run, given: dict[str, Any]) -> tuple[str, str]:
        return "The run is created.", page_of(services.retry_run(run, reason=given["reason"]))


def version_link(run: Run) -> SafeString | str:
    spec = JobVersion.objects.filter(job=run.job_id, version=run.version).first()
    return link(page_of(spec), run.version) if spec else str(run.version)


def details(run: Run) -> list[tuple[str, Any]]:
    took, late, kept = run_detail.lasted(run), run_detail.late_by(run), run.live_or_none or run
    found: list[tuple[str, Any]] = [
        ("State", run_detail.state_label(run.current_state)),
        ("Planned at", moment(run.planned_at)),
        ("Queued", moment(kept.queued_at)),
        ("Started", moment(kept.started_at)),
        ("Took", f"{took} ({late})" if late else took),
        ("Tenant", run.tenant),
        ("Pool", run.pool),
    ]
    if kept.cancel_requested_at:
        found.append(("Cancel requested", moment(kept.cancel_requested_at)))
        found.append(("Cancel acknowledged", moment(kept.cancel_acknowledged_at)))
    return found


def requested_attempt(request: HttpRequest) -> int | None:
    number = request.GET.get("attempt", "")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 6 else None
