"""Dead letters in the admin: grouped by error, the runs of one error, and the decided ones."""

from functools import partial
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.admin.base import LongListAdmin, related
from jobs.admin.buttons import button, refusals_as_messages
from jobs.admin.columns import column, link_column
from jobs.admin.formatting import moment
from jobs.admin.html import QUIET, WARNING, label, link, list_of, list_with, page_of, sentence
from jobs.admin.permissions import may_act
from jobs.models import Role
from runs.admin import dead_letter_dialogs as dialogs
from runs.admin import dead_letter_groups as groups
from runs.admin.list_filters import go_to_run
from runs.models import DeadLetter, Redrive, Run
from runs.services import dead_letters, redrives
from runs.services.dead_letters import MAX_DISMISSED, Redriven

GROUP_COLUMNS = ("error_column", "count_column", "jobs_column", "seen", "tenant", "action")
LETTER_COLUMNS = ("died", "job_column", "error", "action")
DECIDED_COLUMNS = ("died", "job_column", "error", "decision_column", "decided", "reason")
GROUP_BUTTONS = ("redrive_group", "dismiss_group")
LETTER_BUTTONS = ("redrive", "dismiss")


class DeadLetterAdmin(LongListAdmin):
    ordering = ("-died_at", "-run_id")
    prefetched = ("job", "tenant")
    list_filter = (groups.DecisionFilter, *related("tenant", "job"))
    actions = ("redrive_chosen", "dismiss_chosen")
    actions_row = [*GROUP_BUTTONS, *LETTER_BUTTONS]
    list_before_template = "runs/dead_letters.html"

    # Columns of a group.
    error_column = column("error", lambda letter: error_with_link(letter))
    count_column = column("dead runs", lambda letter: letter.group and dialogs.counted(letter.group.size))
    jobs_column = column("jobs", lambda letter: job_links(letter))
    seen = column("first and last seen", lambda letter: first_and_last(letter))
    action = column("action", lambda letter: decision_buttons(letter))
    # Columns of a dead run.
    job_column = link_column("job")
    died = column("died", lambda letter: link(page_of(Run(pk=letter.run_id)), moment(letter.died_at)))
    error = column("error", lambda letter: f"{letter.error_type}: {letter.error_line}"[:120])
    decision_column = column("decision", lambda letter: decision_label(letter))
    decided = column("decided", lambda letter: decided_by(letter))

    def get_list_display(self, request: HttpRequest) -> Any:
        if groups.is_decided(request):
            return DECIDED_COLUMNS
        return GROUP_COLUMNS if groups.is_grouped(request) else LETTER_COLUMNS

    def get_list_filter(self, request: HttpRequest) -> Any:
        return related("tenant") if groups.is_grouped(request) else self.list_filter

    def get_actions_row(self, request: HttpRequest) -> list[Any]:
        """Hide unfold's menu of a row: its buttons are a column."""
        return []

    def get_ordering(self, request: HttpRequest) -> Any:
        return ("-decided_at", "-run_id") if groups.is_decided(request) else self.ordering

    def get_actions(self, request: HttpRequest) -> Any:
        return {} if groups.is_grouped(request) else super().get_actions(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        letters = super().get_queryset(request)
        if groups.is_list(request) and groups.is_grouped(request):
            return letters.filter(pk__in=list(groups.groups_of(request)))
        return letters

    def complete_page(self, request: HttpRequest, rows: list[Any]) -> None:
        """Group by error while no error is chosen: the latest dead letter of each group is its row."""
        for letter in rows:
            letter.may_decide = may_act(request, letter.tenant_id, Role.OPERATOR)
        if groups.is_grouped(request):
            groups.complete_groups(request, rows)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        grouped = groups.is_grouped(request)
        error = "" if grouped else groups.error_of(request)
        extra = {"grouped": grouped, "list_url": list_of(DeadLetter), "error": error}
        return super().changelist_view(request, {**(extra_context or {}), **extra})

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> HttpResponse:
        return go_to_run(object_id)

    @button(
        "Redrive group",
        "forward",
        "Each dead run with this error becomes a new run of the same version, at a limited rate, the oldest "
        "first. Start it when the cause is fixed. It can be stopped under Redrives; runs that die again come back "
        "to this list.",
        submit="Redrive all",
        variant="primary",
        form=dialogs.RedriveGroupDialog,
        then=list_with,
    )
    def redrive_group(self, letter: DeadLetter, given: dict[str, Any]) -> tuple[str, str]:
        redrives.start(
            letter.tenant, letter.fingerprint, given["per_minute"], given["input"], given["reason"]
        )
        return "The redrive has started; this is its progress.", list_of(Redrive)

    @button(
        "Dismiss group",
        "delete_sweep",
        "The dead runs with this error leave this list and are not run again. They stay readable, and each can "
        "still be retried from its page.",
        submit="Dismiss all",
        variant="danger",
        form=dialogs.DismissGroupDialog,
        then=list_with,
    )
    def dismiss_group(self, letter: DeadLetter, given: dict[str, Any]) -> str:
        count = dead_letters.dismiss_group(letter.tenant, letter.fingerprint, given["reason"])
        more = " There are more; dismiss the group again." if count >= MAX_DISMISSED else ""
        return f"{count_runs(count)} dismissed.{more}"

    @button(
        "Redrive",
        "forward",
        "It becomes a new run of the same version, at once. A dead run is redriven once.",
        variant="primary",
        form=dialogs.RedriveDialog,
        then=groups.group_page,
    )
    def redrive(self, letter: DeadLetter, given: dict[str, Any]) -> tuple[str, str]:
        done = dead_letters.redrive(letter.tenant, [letter.pk], given["input"], reason=given["reason"])
        for refusal in done.refused.values():
            raise refusal
        return "The dead run was redriven; this is the new run.", page_of(done.runs[letter.pk])

    @button(
        "Dismiss",
        "delete",
        "It leaves this list and is not run again. It can still be retried from its page.",
        variant="danger",
        form=dialogs.DismissDialog,
        then=groups.group_page,
    )
    def dismiss(self, letter: DeadLetter, given: dict[str, Any]) -> str:
        done = dead_letters.dismiss(letter.tenant, [letter.pk], given["reason"])
        for refusal in done.refused.values():
            raise refusal
        return "The dead run is dismissed."

    @admin.action(description="Redrive the chosen runs now", permissions=["operate"])
    def redrive_chosen(self, request: HttpRequest, letters: QuerySet[Any]) -> None:
        self.decide_all(request, letters, dead_letters.redrive, "redriven")

    @admin.action(description="Dismiss the chosen runs", permissions=["operate"])
    def dismiss_chosen(self, request: HttpRequest, letters: QuerySet[Any]) -> None:
        service = partial(dead_letters.dismiss, reason="dismissed from the list")
        self.decide_all(request, letters, service, "dismissed")

    def decide_all(self, request: HttpRequest, letters: QuerySet[Any], service: Any, done: str) -> None:
        chosen: dict[Any, list[UUID]] = {}
        for letter in letters.select_related("tenant"):
            if self.has_operate_permission(request, str(letter.pk)):
                chosen.setdefault(letter.tenant, []).append(letter.pk)
            else:
                messages.error(request, f"{letter.run_id}: your role does not allow it.")
        count = 0
        for tenant, ids in chosen.items():
            with refusals_as_messages(request):
                found: Redriven = service(tenant, ids)
                count += len(found.runs)
                for refusal in list(found.refused.values())[:5]:
                    messages.error(request, f"{sentence(refusal.detail)}.")
        messages.success(request, f"{count_runs(count)} {done}.")


def error_with_link(letter: Any) -> SafeString:
    name = letter.error_type or letter.error_class or "unnamed"
    named = link(groups.group_page(letter), name)
    return format_html("{}<br><span>{}</span>", named, letter.error_line[:160])


def job_links(letter: Any) -> SafeString:
    jobs = sorted(letter.group_jobs, key=lambda job: job.name)[:4]
    return format_html_join(", ", "{}", ((link(page_of(job), job.name),) for job in jobs))


def first_and_last(letter: Any) -> SafeString | str:
    group = letter.group
    return format_html("{}<br>{}", moment(group.first_at), moment(group.last_at)) if group else ""


def decision_buttons(letter: Any) -> SafeString | str:
    redrive = getattr(letter, "under_way", None)
    if redrive is not None:
        return link(page_of(redrive), f"{redrive.made:,} created, {redrive.per_minute:,} per minute")
    if letter.decision or not letter.may_decide:
        return ""
    redrive_button, dismiss_button = GROUP_BUTTONS if hasattr(letter, "group") else LETTER_BUTTONS
    redrive_link = dialog_link(letter, redrive_button, "Redrive", "bk-first")
    return format_html("{}{}", redrive_link, dialog_link(letter, dismiss_button, "Dismiss"))


def decision_label(letter: DeadLetter) -> SafeString:
    if letter.redriven_as:
        return link(page_of(Run(pk=letter.redriven_as)), "redriven")
    return label(letter.decision or "open", QUIET if letter.decision else WARNING)


def decided_by(letter: DeadLetter) -> SafeString | str:
    if letter.decided_at is None:
        return ""
    return format_html("{} by {}", moment(letter.decided_at), letter.decided_by or "unknown")


def dialog_link(letter: DeadLetter, button: str, title: str, more: str = "") -> SafeString:
    """Link to the dialog of a button, as unfold's own menus do."""
    url = f"{page_of(letter).removesuffix('change/')}{button}/"
    return format_html(
        '<a href="{0}" hx-get="{0}" hx-target="#modal-content" hx-select="#dialog"'
        ' x-on:htmx:after-on-load="openModal = true" class="bk-dialog {1}">{2}</a>',
        url,
        more,
        title,
    )


def count_runs(count: int) -> str:
    return "1 run is" if count == 1 else f"{count:,} runs are"
