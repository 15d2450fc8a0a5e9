"""Jobs in the admin: lists, forms and buttons. Every change goes through the services."""

from typing import Any

from django.contrib import admin, messages
from django.db.models import F, Prefetch, QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from auditlog.redaction import redact
from jobs.admin.base import ServiceAdmin, by_choice, related
from jobs.admin.buttons import button, refusals_as_messages
from jobs.admin.columns import column
from jobs.admin.formatting import as_json, in_line, milliseconds_as_text, moment, schedule_text, status_label
from jobs.admin.forms.dialogs import PauseDialog, ResumeDialog, TimeDialog, ahead_of, describe_missed
from jobs.admin.forms.inputs import layout
from jobs.admin.forms.job import CONDITIONS, JobForm
from jobs.admin.html import audit_trail, link, list_of, list_with, on_one_line
from jobs.admin.pagination import UncountedPaginator
from jobs.declarations import drift_of_job
from jobs.models import Job, JobStatus, JobVersion, Override
from jobs.services import definition as services
from jobs.services import overrides, status
from jobs.services.preview import Ahead
from jobs.spec.fields import FIELDS
from jobs.validation import instants
from scheduler_project.sdk.declarations.plan import FieldDifference

FIRINGS_SHOWN = 5


class JobAdmin(ServiceAdmin):
    """Show and change what this app knows of a job; `runs.admin.jobs` adds its runs and arranges the page."""

    form = JobForm
    paginator = UncountedPaginator
    list_filter = (*by_choice("status"), *related("tenant", "pool"))
    search_fields = ("name",)
    search_help_text = "Search by name"
    list_select_related = ("tenant", "pool", "clock")
    # The order of job_newest_first_idx: without the tenant first, all jobs are sorted for one page.
    ordering = ("tenant_id", "-created_at", "-id")
    sortable_by = ("name_column", "next_run", "priority")
    autocomplete_fields = ("tenant", "pool")
    conditional_fields = CONDITIONS
    name_column = column("name", lambda job: on_one_line(job.name), ordering="name")
    schedule = column("schedule", lambda job: schedule_text(job, current_version(job)))
    next_run = column("next run", lambda job: moment(job.clock.next_run_at), ordering="clock__next_run_at")
    target_column = column("target", lambda job: as_json(current_version(job).target))
    timeout_column = column("timeout", lambda job: milliseconds_as_text(current_version(job).timeout_ms))
    retry_column = column("retry", lambda job: in_line(current_version(job).retry))
    tags_column = column("tags", lambda job: in_line(job.tags))
    readonly_fields = ("target_column", "schedule", "timeout_column", "retry_column", "tags_column")
    viewed_fields = (
        ("name", "tenant", "pool"),
        "description",
        ("priority", "tags_column"),
        "target_column",
        "schedule",
        ("timeout_column", "retry_column"),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        current = JobVersion.objects.filter(version=F("job__version"))
        present = super().get_queryset(request).filter(deleted_at=None)
        return present.prefetch_related(Prefetch("versions", current, to_attr="current_versions"))

    def form_fieldsets(self, row: Any) -> Any:
        definition = layout(FIELDS.values(), "")
        sections = [(name, {"fields": layout(FIELDS.values(), name)}) for name in ("Schedule", "Execution")]
        return [(None, {"fields": [*definition, "seen"] if row else ["tenant", *definition]}), *sections]

    def hidden_buttons(self, row: Any) -> set[str]:
        applies = {
            "pause": row.status in status.PAUSABLE,
            "resume": row.status in status.RESUMABLE,
            "set_override": row.status in overrides.CHANGEABLE and row.spec.schedule is not None,
            "cancel": row.status != JobStatus.CANCELLED,
        }
        return {name for name, does in applies.items() if not does}

    def page_context(self, request: HttpRequest, row: Any) -> dict[str, Any]:
        job, spec = row, row.spec
        ahead = ahead_of(job, FIRINGS_SHOWN) if job.status == JobStatus.ACTIVE else []
        return {
            "job": job,
            "status": status_label(job),
            "status_at": moment(job.status_at),
            "words": schedule_text(job, spec),
            "firings": [firing(one) for one in ahead],
            "declared": describe_declaration(job),
            "links": self.links(job),
        }

    def links(self, job: Job) -> list[SafeString]:
        return [
            link(list_of(JobVersion, job__id__exact=job.pk), f"Versions ({job.version})"),
            link(list_of(Override, job__id__exact=job.pk), "Overrides"),
            audit_trail(job),
        ]

    @button("Pause", "pause", "It has no planned times until it is resumed.", form=PauseDialog)
    def pause(self, job: Job, given: dict[str, Any]) -> str:
        status.pause_job(job, given["reason"], given["until"])
        return f"{job} is paused."

    @button("Resume", "play_arrow", "Its next planned time is the first one after now.", form=ResumeDialog)
    def resume(self, job: Job, given: dict[str, Any]) -> str:
        resumed = status.resume_with(job, given["reason"], given["catch_up"] or None)
        missed = f" {describe_missed(resumed.missed)}" if resumed.missed else ""
        return f"{job} is resumed.{missed}"

    @button("Change a time", "event_repeat", "One planned time changes; the schedule stays.", form=TimeDialog)
    def set_override(self, job: Job, given: dict[str, Any]) -> str:
        planned_at = instants.read(given["planned_at"], "planned_at")
        overrides.put(
            job, planned_at=planned_at, what=given["what"], move_to=given["move_to"], reason=given["reason"]
        )
        return f"{job} has an override."

    @button(
        "Cancel job",
        "block",
        "It gets no more planned times, and its unfinished runs end. This cannot be undone.",
        variant="danger",
    )
    def cancel(self, job: Job, given: dict[str, Any]) -> str:
        status.cancel_job(job, reason=given["reason"])
        return f"{job} is cancelled."

    @button(
        "Delete",
        "delete",
        "Its unfinished runs end; finished runs and the audit trail stay readable.",
        variant="danger",
        permission="remove",
        then=list_with,
    )
    def delete(self, job: Job, given: dict[str, Any]) -> str:
        services.delete_job(job, reason=given["reason"])
        return f"{job} is deleted."

    @admin.action(description="Pause the chosen jobs", permissions=["operate"])
    def pause_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, status.pause_job, "paused")

    @admin.action(description="Resume the chosen jobs", permissions=["operate"])
    def resume_chosen(self, request: HttpRequest, jobs: QuerySet[Any]) -> None:
        self.do_all(request, jobs, status.resume_job, "resumed")

    def do_all(self, request: HttpRequest, jobs: QuerySet[Any], service: Any, done: str) -> None:
        count = 0
        for job in jobs:
            with refusals_as_messages(request):
                if not self.has_operate_permission(request, str(job.pk)):
                    messages.error(request, f"{job}: your role does not allow it.")
                    continue
                service(job)
                count += 1
        messages.success(request, f"{count} {'job' if count == 1 else 'jobs'} {done}.")


def current_version(job: Any) -> JobVersion:
    found: list[JobVersion] = getattr(job, "current_versions", [])
    return found[0] if found else job.spec


def firing(one: Ahead) -> dict[str, Any]:
    return {"at": moment(one.planned_at), "words": one.description, "dropped": one.starts_at is None}


def describe_declaration(job: Job) -> dict[str, Any] | None:
    """Describe which code declares the job and what was edited by hand; None for a job that no code declares."""
    found = drift_of_job(job)
    if found is None:
        return None
    declaration, drift = found
    code = f"the code base {declaration.source}" if declaration.source else "a code base"
    return {
        "words": f"Declared by {code} in the pool {declaration.pool}. Edits made here differ from its code.",
        "drift": [
            *([f"Its latest declaration was refused: {declaration.error}"] if declaration.error else []),
            *([f"Edited by hand since then: `beatkeeper apply` of {code} resets it."] if drift else []),
            *(str(difference) for difference in redacted(drift)),
        ],
    }


def redacted(drift: list[FieldDifference]) -> list[FieldDifference]:
    """Mask values as the audit trail does."""
    shown = []
    for one in drift:
        name = one.field.rpartition(".")[2]
        before, after = redact({name: one.before})[name], redact({name: one.after})[name]
        shown.append(FieldDifference(one.field, before, after))
    return shown
