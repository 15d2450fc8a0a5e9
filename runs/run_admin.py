"""Runs and their attempts in the admin: read only, but for cancel and retry, which go through the services."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from auditlog.models import AuditEntry
from jobs.display import NOTHING, as_json, moment
from jobs.models import Job, JobVersion
from jobs.staff import (
    LookOnly,
    OwnRelated,
    button,
    found_or_missing,
    go_to,
    is_superuser,
    link,
    list_of,
    own_tenants,
    page_of,
    telling,
    together,
)
from jobs.uncounted_pages import Uncounted
from runs import reasons, services
from runs.dead_letters import letter_of
from runs.models import Attempt, DeadLetter, LiveRun, Run
from runs.run_lists import RunningOn, State, Window, WithWorkers, chips, go_to_run, search
from runs.run_logs import NoSuchAttempt
from runs.run_page import (
    attempt_rows,
    lasted,
    late_by,
    live_of,
    log_as_text,
    log_part,
    outcome_label,
    reason_of,
    state_label,
    state_of,
    took,
)
from runs.states import FinalState, LiveState
from scheduler_project.sdk.log_store import LogMissing

ATTEMPT_HEADINGS = ("Attempt", "Outcome", "Started", "Took", "Worker", "Error", "Then")


class ListOfRuns(LookOnly):
    paginator = Uncounted
    search_help_text = "Search by name of the job or id of the run"
    sortable_by = ()
    list_select_related = ()
    actions = None

    def get_search_results(self, request: HttpRequest, queryset: QuerySet[Any], text: str) -> Any:
        if not text.strip():
            return queryset, False
        return search(queryset, own_jobs(request), text), False


class RunAdmin(ListOfRuns):
    list_display = (
        "planned",
        "shown_state",
        "shown_job",
        "tenant",
        "trigger",
        "tries",
        "duration",
        "said",
    )
    list_filter = (
        Window,
        State,
        ("trigger", ChoicesDropdownFilter),
        ("tenant", OwnRelated),
        ("job", OwnRelated),
        ("pool", OwnRelated),
    )
    search_fields = ("id",)
    ordering = ("-id",)
    actions_detail = ["cancel", "retry"]
    actions_row = ["cancel", "retry"]
    list_before_template = "runs/chips.html"
    change_form_outer_before_template = "runs/run_page.html"
    fieldsets = (
        (
            "Details",
            {
                "fields": (
                    ("id", "shown_version"),
                    ("trigger", "requested_by"),
                    ("created", "shown_retry_of"),
                    ("priority", "traceparent"),
                    ("error_class", "error_type"),
                    "fingerprint",
                    "shown_input",
                    "shown_result",
                )
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # Not by joins: whatever the planner thinks of them, only the rows of a page are looked up.
        return super().get_queryset(request).prefetch_related("live", "job", "tenant", "pool")

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(self.whole_log)
        return [path("<path:object_id>/log/", view, name="beatkeeper_runs_run_log"), *super().get_urls()]

    def whole_log(self, request: HttpRequest, object_id: str) -> HttpResponse:
        run = self.get_object(request, object_id)
        if run is None:
            raise Http404
        try:
            text = log_as_text(run, asked_attempt(request))
        except (LogMissing, NoSuchAttempt) as missing:
            raise Http404 from missing
        return HttpResponse(text, content_type="text/plain; charset=utf-8")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        return super().changelist_view(request, {**(extra_context or {}), "chips": chips(request)})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        run = self.get_object(request, object_id)
        if run and run.state and request.headers.get("HX-Request"):
            # It ended while somebody watched: the buttons are others now.
            return HttpResponse(headers={"HX-Refresh": "true"})
        extra = {**(extra_context or {}), **(self.page(request, run) if run else {})}
        return super().change_view(request, object_id, form_url, extra)

    def page(self, request: HttpRequest, run: Run) -> dict[str, Any]:
        number = asked_attempt(request)
        return {
            "title": f"Run of {run.job}",
            "subtitle": None,
            "run": run,
            "unfinished": run.state is None,
            "facts": facts(run),
            "error": run.error_line if run.state == FinalState.DEAD else "",
            "reason": reason_of(run),
            "links": self.links(run),
            "attempt_headings": ATTEMPT_HEADINGS,
            "attempts": attempt_rows(run),
            "number": number,
            "log": log_part(run, number),
            "whole_log": f"{page_of(run).removesuffix('change/')}log/{f'?attempt={number}' if number else ''}",
        }

    def links(self, run: Run) -> list[SafeString]:
        return [
            link(page_of(run.job), f"Job {run.job}"),
            link(list_of(Run, job__id__exact=run.job_id, window="7d"), "All runs of the job"),
            link(list_of(AuditEntry, object_type="run", object_id=run.pk), "Audit trail"),
            *same_error(run),
        ]

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        run = self.get_object(request, str(object_id))
        useless = useless_button(run) if run else ""
        found = super().get_actions_detail(request, object_id)  # type: ignore[misc]
        return [one for one in found if one.method.original_function_name != useless]

    @admin.display(description="planned at")
    def planned(self, run: Run) -> SafeString | str:
        return moment(run.planned_at)

    @admin.display(description="state")
    def shown_state(self, run: Run) -> SafeString:
        return state_label(state_of(run))

    @admin.display(description="job")
    def shown_job(self, run: Run) -> SafeString:
        return link(page_of(run.job), run.job)

    @admin.display(description="attempts")
    def tries(self, run: Run) -> int:
        live = live_of(run)
        return live.attempt if live else run.attempts

    @admin.display(description="took")
    def duration(self, run: Run) -> SafeString:
        return together(lasted(run))

    @admin.display(description="error or reason")
    def said(self, run: Run) -> str:
        return shortened(reason_of(run) or run.error_line) or NOTHING

    @admin.display(description="version")
    def shown_version(self, run: Run) -> SafeString | str:
        spec = JobVersion.objects.filter(job=run.job_id, version=run.version).first()
        return link(page_of(spec), run.version) if spec else str(run.version)

    @admin.display(description="created")
    def created(self, run: Run) -> SafeString | str:
        return moment(run.created_at)

    @admin.display(description="retry of")
    def shown_retry_of(self, run: Run) -> SafeString | str:
        return link(page_of(Run(pk=run.retry_of)), run.retry_of) if run.retry_of else NOTHING

    @admin.display(description="input")
    def shown_input(self, run: Run) -> SafeString | str:
        return as_json(run.input)

    @admin.display(description="result")
    def shown_result(self, run: Run) -> SafeString | str:
        return as_json(run.result)

    @button(
        "Cancel run",
        icon="block",
        asks="Unclaimed, it ends at once; running, its worker is told to stop it.",
        variant="danger",
    )
    def cancel(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target = list_of(Run)
        with telling(request):
            run = found_or_missing(self.get_object(request, object_id))
            target = page_of(run)
            done = services.cancel_run(run, form.cleaned_data["reason"])
            self.message_user(
                request, "The run is cancelled." if done.state else "Its worker is told to stop it."
            )
        return go_to(request, target)

    @button(
        "Retry",
        icon="replay",
        asks="A new run of the same version and input; a run in its back-off goes now.",
    )
    def retry(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target = list_of(Run)
        with telling(request, "It is on its way."):
            run = found_or_missing(self.get_object(request, object_id))
            target = page_of(run)
            target = page_of(services.retry_run(run, reason=form.cleaned_data["reason"]))
        return go_to(request, target)


class LiveRunAdmin(ListOfRuns):
    list_display = (
        "planned",
        "shown_state",
        "shown_job",
        "tenant",
        "pool",
        "shown_worker",
        "attempt",
        "shown_reason",
        "wakes",
    )
    list_filter = (
        ("state", ChoicesDropdownFilter),
        ("tenant", OwnRelated),
        ("pool", OwnRelated),
        ("job", OwnRelated),
        RunningOn,
    )
    search_fields = ("pk",)
    ordering = ("-pk",)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return WithWorkers

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("job", "tenant", "pool")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return go_to_run(object_id)

    @admin.display(description="planned at")
    def planned(self, live: LiveRun) -> SafeString | str:
        return moment(live.planned_at)

    @admin.display(description="state")
    def shown_state(self, live: LiveRun) -> SafeString:
        return state_label(live.state)

    @admin.display(description="job")
    def shown_job(self, live: LiveRun) -> SafeString:
        return link(page_of(live.job), live.job)

    @admin.display(description="worker")
    def shown_worker(self, live: Any) -> SafeString | str:
        if live.node is None:
            return NOTHING
        return link(page_of(live.node), live.node) if live.may_see_node else str(live.node)

    @admin.display(description="reason")
    def shown_reason(self, live: LiveRun) -> str:
        return reasons.in_words(live) or NOTHING

    @admin.display(description="looked at again")
    def wakes(self, live: LiveRun) -> SafeString | str:
        return moment(live.wake_at)


class AttemptAdmin(LookOnly):
    paginator = Uncounted
    list_display = (
        "started",
        "shown_outcome",
        "number",
        "shown_run",
        "tenant",
        "worker_name",
        "lasted",
        "said",
    )
    list_filter = (Window, ("outcome", ChoicesDropdownFilter), ("tenant", OwnRelated))
    ordering = ("-id",)
    sortable_by = ()
    list_select_related = ()
    actions = None
    fields = (
        ("shown_run", "number", "claim_seq"),
        ("shown_outcome", "next_state", "exit_code"),
        ("started", "lasted", "worker_name"),
        ("error_class", "error_type", "fingerprint"),
        "error_line",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).prefetch_related("tenant")

    @admin.display(description="started")
    def started(self, attempt: Attempt) -> SafeString | str:
        return moment(attempt.started_at)

    @admin.display(description="outcome")
    def shown_outcome(self, attempt: Attempt) -> SafeString:
        return outcome_label(attempt)

    @admin.display(description="run")
    def shown_run(self, attempt: Attempt) -> SafeString:
        return link(page_of(Run(pk=attempt.run_id)), str(attempt.run_id)[-12:])

    @admin.display(description="took")
    def lasted(self, attempt: Attempt) -> SafeString:
        return together(took(attempt.started_at, attempt.finished_at))

    @admin.display(description="error")
    def said(self, attempt: Attempt) -> str:
        return shortened(attempt.error_line) or NOTHING


def same_error(run: Run) -> list[SafeString]:
    letter = letter_of(run)
    if letter is None:
        return []
    query = {"tenant__id__exact": run.tenant_id, "fingerprint__exact": letter.fingerprint}
    return [link(list_of(DeadLetter, **query), "Dead of the same error")]


def facts(run: Run) -> list[tuple[str, Any]]:
    live = live_of(run)
    return [
        ("State", state_label(state_of(run))),
        ("Planned at", moment(run.planned_at)),
        ("Started", moment(live.started_at if live else run.started_at)),
        ("Took", " ".join(part for part in (lasted(run), late_by(run) and f"({late_by(run)})") if part)),
        ("Tenant", run.tenant),
        ("Pool", run.pool),
        *cancel_stages(live),
    ]


def cancel_stages(live: LiveRun | None) -> list[tuple[str, Any]]:
    """Of a run under way; one that has ended says in its state what came of it."""
    if live is None or live.cancel_requested_at is None:
        return []
    return [
        ("Cancel requested", moment(live.cancel_requested_at)),
        ("Cancel acknowledged", moment(live.cancel_acknowledged_at)),
    ]


def useless_button(run: Run) -> str:
    """A finished run can be retried, an unfinished one cancelled; one in its back-off both."""
    if run.state is not None:
        return "cancel"
    return "" if state_of(run) == LiveState.DELAYED else "retry"


def own_jobs(request: HttpRequest) -> QuerySet[Job]:
    """Deleted ones too: their runs are still there."""
    return Job.objects.all() if is_superuser(request) else Job.objects.filter(tenant__in=own_tenants(request))


def asked_attempt(request: HttpRequest) -> int | None:
    number = request.GET.get("attempt", "")
    return int(number) if number.isascii() and number.isdigit() and len(number) < 6 else None


def shortened(text: str, length: int = 90) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
