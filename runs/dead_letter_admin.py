"""The dead-letter desk in the admin: what died by error, the runs of one error, and what is decided of them."""

from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from jobs.display import NOTHING, moment
from jobs.staff import (
    QUIET,
    WARNING,
    LookOnly,
    OwnRelated,
    button,
    found_or_missing,
    go_to,
    label,
    link,
    list_of,
    page_of,
    telling,
)
from jobs.uncounted_pages import Uncounted
from runs import dead_letters, redrives
from runs.dead_letter_desk import (
    DecisionFilter,
    Desk,
    error_of,
    groups_of,
    is_decided,
    is_grouped,
    is_list,
    letters_of,
)
from runs.dead_letter_dialogs import (
    DismissDialog,
    DismissGroupDialog,
    RedriveDialog,
    RedriveGroupDialog,
    counted,
)
from runs.dead_letters import MOST_DISMISSED, Redriven
from runs.models import DeadLetter, Redrive, Run
from runs.run_lists import go_to_run

GROUP_COLUMNS = ("shown_error", "shown_count", "shown_jobs", "seen", "tenant", "what_to_do")
LETTER_COLUMNS = ("died", "shown_job", "said", "what_to_do")
DECIDED_COLUMNS = ("died", "shown_job", "said", "shown_decision", "decided", "note")
OF_GROUPS = ("redrive_group", "dismiss_group")
OF_LETTERS = ("redrive", "dismiss")


class DeadLetterAdmin(LookOnly):
    paginator = Uncounted
    ordering = ("-died_at", "-run_id")
    sortable_by = ()
    list_select_related = ()
    list_filter = (DecisionFilter, ("tenant", OwnRelated), ("job", OwnRelated))
    actions = ("redrive_chosen", "dismiss_chosen")
    actions_row = [*OF_GROUPS, *OF_LETTERS]
    list_before_template = "runs/dead_letter_desk.html"

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        return Desk

    def get_list_display(self, request: HttpRequest) -> Any:
        if is_decided(request):
            return DECIDED_COLUMNS
        return GROUP_COLUMNS if is_grouped(request) else LETTER_COLUMNS

    def get_list_filter(self, request: HttpRequest) -> Any:
        return (("tenant", OwnRelated),) if is_grouped(request) else self.list_filter

    def get_actions_row(self, request: HttpRequest) -> list[Any]:
        """The buttons stand in the rows, and not behind three dots."""
        return []

    def get_ordering(self, request: HttpRequest) -> Any:
        return ("-decided_at", "-run_id") if is_decided(request) else self.ordering

    def get_actions(self, request: HttpRequest) -> Any:
        return {} if is_grouped(request) else super().get_actions(request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        letters = super().get_queryset(request).prefetch_related("job", "tenant")
        if is_list(request) and is_grouped(request):
            return letters.filter(pk__in=list(groups_of(request)))
        return letters

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        grouped = is_grouped(request)
        extra = {
            "grouped": grouped,
            "desk_url": list_of(DeadLetter),
            "error": "" if grouped else error_of(request),
        }
        return super().changelist_view(request, {**(extra_context or {}), **extra})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        return go_to_run(object_id)

    # A group.

    @admin.display(description="error")
    def shown_error(self, letter: Any) -> SafeString:
        return format_html(
            "{}<br><span>{}</span>",
            link(letters_of(letter), letter.error_type or letter.error_class or "unnamed"),
            letter.error_line[:160],
        )

    @admin.display(description="dead runs")
    def shown_count(self, letter: Any) -> str:
        return counted(letter.group) if letter.group else NOTHING

    @admin.display(description="jobs")
    def shown_jobs(self, letter: Any) -> SafeString | str:
        jobs = sorted(letter.group_jobs, key=lambda job: job.name)[:4]
        return format_html_join(", ", "{}", ((link(page_of(job), job.name),) for job in jobs)) or NOTHING

    @admin.display(description="first and last seen")
    def seen(self, letter: Any) -> SafeString | str:
        if letter.group is None:
            return NOTHING
        return format_html("{}<br>{}", moment(letter.group.first_at), moment(letter.group.last_at))

    @admin.display(description="what to do")
    def what_to_do(self, letter: Any) -> SafeString | str:
        redrive = getattr(letter, "under_way", None)
        if redrive is not None:
            return link(page_of(redrive), f"{redrive.made:,} made, {redrive.per_minute:,} a minute")
        if letter.decision or not letter.may_decide:
            return NOTHING
        again, never = OF_GROUPS if hasattr(letter, "group") else OF_LETTERS
        return format_html("{}{}", ask(letter, again, "Redrive", "bk-first"), ask(letter, never, "Dismiss"))

    # A dead run.

    @admin.display(description="job")
    def shown_job(self, letter: DeadLetter) -> SafeString:
        return link(page_of(letter.job), letter.job)

    @admin.display(description="died")
    def died(self, letter: DeadLetter) -> SafeString:
        return link(page_of(Run(pk=letter.run_id)), moment(letter.died_at))

    @admin.display(description="error")
    def said(self, letter: DeadLetter) -> str:
        return f"{letter.error_type}: {letter.error_line}"[:120]

    @admin.display(description="decision")
    def shown_decision(self, letter: DeadLetter) -> SafeString:
        if letter.redriven_as:
            return link(page_of(Run(pk=letter.redriven_as)), "redriven")
        return label(letter.decision or "open", QUIET if letter.decision else WARNING)

    @admin.display(description="decided")
    def decided(self, letter: DeadLetter) -> SafeString | str:
        if letter.decided_at is None:
            return NOTHING
        return format_html("{} by {}", moment(letter.decided_at), letter.decided_by or "nobody in particular")

    @button(
        "Redrive group",
        icon="forward",
        asks="Each dead run of this error becomes a new run of the same version, so many a minute, the oldest death "
        "first. Do so when the cause is mended. It can be stopped at any time under Redrives; what dies again comes "
        "back to this desk.",
        submit="Redrive all of them",
        variant="primary",
        form=RedriveGroupDialog,
    )
    def redrive_group(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target, given = list_of(DeadLetter), form.cleaned_data
        with telling(request, "The group is on its way; here is how far it has come."):
            letter = found_or_missing(self.get_object(request, object_id))
            redrives.start(
                letter.tenant, letter.fingerprint, given["per_minute"], given["input"], given["reason"]
            )
            target = list_of(Redrive)
        return go_to(request, target)

    @button(
        "Dismiss group",
        icon="delete_sweep",
        asks="Nothing is run for the dead runs of this error, and they leave this desk. The runs themselves stay "
        "readable, and each can still be retried from its page.",
        submit="Dismiss all of them",
        variant="danger",
        form=DismissGroupDialog,
    )
    def dismiss_group(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        with telling(request):
            letter = found_or_missing(self.get_object(request, object_id))
            note = form.cleaned_data["reason"]
            count = dead_letters.dismiss_group(letter.tenant, letter.fingerprint, note)
            more = " There are more; dismiss the group again." if count >= MOST_DISMISSED else ""
            messages.success(request, f"{of_them(count)} dismissed.{more}")
        return go_to(request, list_of(DeadLetter))

    @button(
        "Redrive",
        icon="forward",
        asks="It becomes a new run of the same version, at once. A dead run is redriven once.",
        variant="primary",
        form=RedriveDialog,
    )
    def redrive(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target, given = list_of(DeadLetter), form.cleaned_data
        with telling(request):
            letter = found_or_missing(self.get_object(request, object_id))
            target = letters_of(letter)
            done = dead_letters.redrive(letter.tenant, [letter.pk], given["input"], reason=given["reason"])
            for refusal in done.refused.values():
                raise refusal
            messages.success(request, "It runs again; this is the new run.")
            target = page_of(done.runs[letter.pk])
        return go_to(request, target)

    @button(
        "Dismiss",
        icon="delete",
        asks="Nothing is run for it, and it leaves this desk. It can still be retried from its page.",
        variant="danger",
        form=DismissDialog,
    )
    def dismiss(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        target = list_of(DeadLetter)
        with telling(request):
            letter = found_or_missing(self.get_object(request, object_id))
            target = letters_of(letter)
            done = dead_letters.dismiss(letter.tenant, [letter.pk], form.cleaned_data["reason"])
            for refusal in done.refused.values():
                raise refusal
            messages.success(request, "It is dismissed.")
        return go_to(request, target)

    @admin.action(description="Redrive the chosen runs now", permissions=["operate"])
    def redrive_chosen(self, request: HttpRequest, letters: QuerySet[Any]) -> None:
        self.decide_all(request, letters, lambda tenant, ids: dead_letters.redrive(tenant, ids), "redriven")

    @admin.action(description="Dismiss the chosen runs", permissions=["operate"])
    def dismiss_chosen(self, request: HttpRequest, letters: QuerySet[Any]) -> None:
        note = "dismissed from the list"
        self.decide_all(
            request, letters, lambda tenant, ids: dead_letters.dismiss(tenant, ids, note), "dismissed"
        )

    def decide_all(self, request: HttpRequest, letters: QuerySet[Any], service: Any, done: str) -> None:
        chosen: dict[Any, list[UUID]] = {}
        for letter in letters.select_related("tenant"):
            if self.has_operate_permission(request, str(letter.pk)):
                chosen.setdefault(letter.tenant, []).append(letter.pk)
            else:
                messages.error(request, f"{letter.run_id}: your role does not allow it.")
        count = 0
        for tenant, ids in chosen.items():
            with telling(request):
                found: Redriven = service(tenant, ids)
                count += len(found.runs)
                for refusal in list(found.refused.values())[:5]:
                    messages.error(request, f"{refusal.detail[:1].upper()}{refusal.detail[1:]}.")
        messages.success(request, f"{of_them(count)} {done}.")


def ask(letter: DeadLetter, button: str, title: str, more: str = "") -> SafeString:
    """Opens the dialog of a button, as unfold's own menus do."""
    url = f"{page_of(letter).removesuffix('change/')}{button}/"
    return format_html(
        '<a href="{0}" hx-get="{0}" hx-target="#modal-content" hx-select="#dialog"'
        ' x-on:htmx:after-on-load="openModal = true" class="bk-ask {1}">{2}</a>',
        url,
        more,
        title,
    )


def of_them(count: int) -> str:
    return "1 run is" if count == 1 else f"{count:,} runs are"
