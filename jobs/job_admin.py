"""Jobs in the admin: lists, forms and buttons. Every change goes through the services."""

from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.db.models import F, Model, Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from auditlog.models import AuditEntry
from auditlog.redaction import redact
from jobs import instants, known_targets, planned_changes, services, stops
from jobs.database_clock import database_now
from jobs.declarations import drift_of_job
from jobs.display import (
    NOTHING,
    as_json,
    in_line,
    milliseconds_as_text,
    moment,
    schedule_in_words,
    status_label,
)
from jobs.forecast import Ahead
from jobs.job_dialogs import PauseDialog, ResumeDialog, TimeDialog, ahead_of, missed_in_words
from jobs.job_form import JobForm
from jobs.missed import missed_so_far
from jobs.models import Job, JobStatus, JobVersion, PlannedChange, Stop
from jobs.staff import (
    KeptByService,
    OwnRelated,
    button,
    found_or_missing,
    go_to,
    link,
    list_of,
    page_of,
    sentence,
    telling,
    together,
)
from jobs.uncounted_pages import Uncounted
from scheduler_project.sdk.plan import Difference

FIRINGS_SHOWN = 5


class JobAdmin(KeptByService):
    """What runs know of a job is added in runs/job_admin.py: jobs never calls up."""

    form = JobForm
    paginator = Uncounted
    list_display: Any = ("shown_name", "tenant", "shown_status", "schedule", "next_run", "pool", "priority")
    list_filter = (
        ("status", ChoicesDropdownFilter),
        ("tenant", OwnRelated),
        ("pool", OwnRelated),
    )
    search_fields = ("name",)
    search_help_text = "Search by name"
    list_select_related = ("tenant", "pool", "clock")
    # As job_newest_first_idx has them: without tenant first, the newest of ten million would be sorted for.
    ordering = ("tenant_id", "-created_at", "-id")
    sortable_by = ("shown_name", "next_run", "priority")
    autocomplete_fields = ("tenant", "pool")
    actions: Any = ("pause_chosen", "resume_chosen")
    actions_detail: Any = ["pause", "resume", "change_time", "cancel", "delete"]
    actions_row: Any = ["pause", "resume", "cancel"]
    change_form_outer_before_template = "jobs/job_summary.html"
    conditional_fields = {
        "cron": "schedule_kind == 'cron'",
        "timezone": "schedule_kind == 'cron'",
        "every": "schedule_kind == 'every'",
        "at": "schedule_kind == 'at'",
        "start": "schedule_kind == 'cron' || schedule_kind == 'every'",
        "end": "schedule_kind == 'cron' || schedule_kind == 'every'",
        "calendar": "schedule_kind != 'none'",
        "on_closed": "schedule_kind != 'none'",
        "jitter": "schedule_kind != 'none'",
        "catch_up_max": "catch_up_policy == 'all'",
        "catch_up_per_minute": "catch_up_policy == 'all'",
        "catch_up_order": "catch_up_policy == 'all'",
    }
    readonly_fields = ("shown_target", "schedule", "shown_timeout", "shown_retry", "shown_tags")
    what = (
        ("name", "pool"),
        "description",
        ("priority", "tags"),
        "target",
    )
    when = (
        "schedule_kind",
        ("cron", "timezone"),
        "every",
        "at",
        ("start", "end"),
        ("calendar", "on_closed"),
        "jitter",
    )
    how = (
        ("timeout", "max_concurrency"),
        "overlap",
        ("retry_max_attempts", "retry_backoff"),
        ("retry_base", "retry_cap"),
        ("retry_jitter", "retry_max_losses"),
        "retry_permanent",
        "retry_transient",
        "retry_user",
        ("breaker_failures", "breaker_cooldown"),
        ("catch_up_policy", "catch_up_window"),
        ("catch_up_max", "catch_up_per_minute"),
        "catch_up_order",
    )
    looked_at = (
        ("name", "tenant", "pool"),
        "description",
        ("priority", "shown_tags"),
        "shown_target",
        "schedule",
        ("shown_timeout", "shown_retry"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        current = JobVersion.objects.filter(version=F("job__version"))
        present = super().get_queryset(request).filter(deleted_at=None)
        return present.prefetch_related(Prefetch("versions", current, to_attr="current_versions"))

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self.looked_at})]
        what = (*self.what, "seen") if obj else ("tenant", *self.what)
        return [(None, {"fields": what}), ("When", {"fields": self.when}), ("How", {"fields": self.how})]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The fields are the form's own; unfold cannot find them on the model.
        return super().get_form(
            request, obj, change, **{**kwargs, "fields": ("pool",) if obj else ("tenant", "pool")}
        )

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # the button `Delete` is the soft one

    def has_pause_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        return self.has_operate_permission(request, object_id)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        job = self.get_object(request, object_id)
        extra = {**(extra_context or {}), **(self.summary(job) if job else {})}
        return super().change_view(request, object_id, form_url, extra)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """Only the buttons that make sense now."""
        job = self.get_object(request, str(object_id))
        useless = self.useless_buttons(job) if job else set()
        return [
            found
            for found in super().get_actions_detail(request, object_id)  # type: ignore[misc]
            if found.method.original_function_name not in useless
        ]

    def useless_buttons(self, job: Job) -> set[str]:
        useless = set()
        if job.status not in services.PAUSABLE:
            useless.add("pause")
        if job.status not in services.RESUMABLE:
            useless.add("resume")
        if job.status not in planned_changes.CHANGEABLE or job.spec.schedule is None:
            useless.add("change_time")
        if job.status == JobStatus.CANCELLED:
            useless.add("cancel")
        return useless

    def summary(self, job: Job) -> dict[str, Any]:
        spec = job.spec
        return {
            "job": job,
            "status": status_label(job),
            "status_at": moment(job.status_at),
            "words": schedule_in_words(job, spec),
            "firings": [firing(one) for one in ahead_of(job, FIRINGS_SHOWN)] if planned(job) else [],
            "why": why_not(job, spec),
            "declared": declared_in_words(job),
            "links": self.links(job),
        }

    def links(self, job: Job) -> list[SafeString]:
        return [
            link(list_of(JobVersion, job__id__exact=job.pk), f"Versions ({job.version})"),
            link(list_of(PlannedChange, job__id__exact=job.pk), "Changed times"),
            link(list_of(AuditEntry, object_type="job", object_id=job.pk), "Audit trail"),
        ]

    @admin.display(description="name", ordering="name")
    def shown_name(self, job: Job) -> SafeString:
        return together(job.name)

    @admin.display(description="status", ordering="status")
    def shown_status(self, job: Job) -> SafeString:
        return status_label(job)

    @admin.display(description="schedule")
    def schedule(self, job: Any) -> str:
        return schedule_in_words(job, current_version(job))

    @admin.display(description="next run", ordering="clock__next_run_at")
    def next_run(self, job: Job) -> SafeString | str:
        return moment(job.clock.next_run_at)

    @admin.display(description="target")
    def shown_target(self, job: Any) -> SafeString | str:
        return as_json(current_version(job).target)

    @admin.display(description="timeout")
    def shown_timeout(self, job: Any) -> str:
        return milliseconds_as_text(current_version(job).timeout_ms)

    @admin.display(description="retry")
    def shown_retry(self, job: Any) -> str:
        return in_line(current_version(job).retry)

    @admin.display(description="tags")
    def shown_tags(self, job: Job) -> str:
        return in_line(job.tags) or NOTHING

    @button(
        "Pause",
        icon="pause",
        asks="It has no planned times until it is resumed.",
        permission="pause",
        form=PauseDialog,
    )
    def pause(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        pause = partial(services.pause_job, until=form.cleaned_data["until"])
        return self.do(request, form, object_id, pause, "is paused")

    @button(
        "Resume",
        icon="play_arrow",
        asks="It goes on with the first time after now.",
        permission="pause",
        form=ResumeDialog,
    )
    def resume(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        job, given = found_or_missing(self.get_object(request, object_id)), form.cleaned_data
        with telling(request):
            resumed = services.resume_with(job, given["reason"], given["catch_up"] or None)
            missed = f" {missed_in_words(resumed.missed)}" if resumed.missed else ""
            messages.success(request, f"{job} goes on.{missed}")
        return go_to(request, page_of(job))

    @button(
        "Change a time",
        icon="event_repeat",
        asks="One planned time alone; the schedule stays.",
        permission="pause",
        form=TimeDialog,
    )
    def change_time(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        given = form.cleaned_data
        planned_at = instants.read(given["planned_at"], "planned_at")
        change = partial(planned_changes.put, planned_at=planned_at, move_to=given["move_to"])
        return self.do(request, form, object_id, partial(change, what=given["what"]), "is planned anew")

    @button(
        "Cancel job",
        icon="block",
        asks="For good: no more planned times, and its unfinished runs end.",
        variant="danger",
        permission="pause",
    )
    def cancel(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        return self.do(request, form, object_id, services.cancel_job, "is cancelled")

    @button(
        "Delete",
        icon="delete",
        asks="It disappears, its unfinished runs end; finished runs and the audit trail stay readable.",
        variant="danger",
        permission="retire",
    )
    def delete(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        self.do(request, form, object_id, services.delete_job, "is deleted")
        return go_to(request, list_of(Job))

    def has_retire_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        job = self.get_object(request, str(object_id)) if object_id else None
        return job is not None and self.has_change_permission(request, job)

    def do(self, request: HttpRequest, form: Any, object_id: str, service: Any, done: str) -> HttpResponse:
        job = self.get_object(request, object_id)
        with telling(request, f"{job} {done}."):
            service(found_or_missing(job), reason=form.cleaned_data["reason"])
        return go_to(request, page_of(job) if job else list_of(Job))

    @admin.action(description="Pause the chosen jobs", permissions=["pause"])
    def pause_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, services.pause_job, "paused")

    @admin.action(description="Resume the chosen jobs", permissions=["pause"])
    def resume_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, services.resume_job, "resumed")

    def do_all(self, request: HttpRequest, jobs: QuerySet[Any], service: Any, done: str) -> None:
        count = 0
        for job in jobs:
            with telling(request):
                if not self.has_pause_permission(request, str(job.pk)):
                    messages.error(request, f"{job}: your role does not allow it.")
                    continue
                service(job)
                count += 1
        messages.success(request, f"{count} {'job' if count == 1 else 'jobs'} {done}.")


def current_version(job: Any) -> JobVersion:
    found: list[JobVersion] = getattr(job, "current_versions", [])
    return found[0] if found else job.spec


def planned(job: Job) -> bool:
    return job.status == JobStatus.ACTIVE


def firing(one: Ahead) -> dict[str, Any]:
    return {"at": moment(one.planned_at), "words": one.in_words, "dropped": one.starts_at is None}


def declared_in_words(job: Job) -> dict[str, Any] | None:
    """Of a job that code declares: whose, and what was changed by hand. None: of all others."""
    found = drift_of_job(job)
    if found is None:
        return None
    declaration, drift = found
    code = f"the code base {declaration.source}" if declaration.source else "a code base"
    changed = f"Edited by hand since then: `beatkeeper apply` of {code} sets it back"
    return {
        "words": f"Declared by {code}, pool {declaration.pool}. What is changed here differs from its code.",
        "drift": [
            *([f"What its code declares now was refused: {declaration.error}"] if declaration.error else []),
            *([f"{changed}."] if drift else []),
            *(str(difference) for difference in redacted(drift)),
        ],
    }


def redacted(drift: list[Difference]) -> list[Difference]:
    """A value is shown as the audit trail shows it."""
    shown = []
    for one in drift:
        name = one.field.rpartition(".")[2]
        before, after = redact({name: one.before})[name], redact({name: one.after})[name]
        shown.append(Difference(one.field, before, after))
    return shown


def why_not(job: Job, spec: JobVersion) -> list[SafeString]:
    """What keeps it from running now, as far as jobs know; runs add the rest."""
    now = database_now()
    found = []
    if job.paused_until is not None:
        found.append(format_html("It goes on by itself at {}.", moment(job.paused_until, now)))
    if missed := missed_so_far(job, spec, now):
        found.append(format_html("{}", missed_in_words(missed)))
    if unknown := known_targets.warning(spec.target, job.pool, job.tenant):
        found.append(format_html("{}.", sentence(unknown)))
    for stop in stops.of_job(job, now):
        end = format_html(" until {}", moment(stop.over_at, now)) if stop.over_at else ""
        shown = link(page_of(Stop(pk=stop.id)), sentence(stop.word))
        note = f": {stop.note}" if stop.note else ""
        found.append(format_html("{}{}{}", shown, end, note))
    return found
