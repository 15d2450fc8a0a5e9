"""Pauses and blackouts in the admin: members those of their tenants, operators of the platform all."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.widgets import UnfoldAdminTextareaWidget, UnfoldBooleanSwitchWidget

from jobs.admin import html
from jobs.admin.base import ServiceAdmin, by_choice, related
from jobs.admin.buttons import button
from jobs.admin.columns import column, moment_column
from jobs.admin.formatting import moment
from jobs.admin.forms.base import ServiceForm, choice, line
from jobs.admin.html import BAD, BUSY, QUIET, audit_trail, on_one_line, sentence
from jobs.admin.permissions import is_superuser, own_tenants
from jobs.clock import database_now
from jobs.models import Effect, Pool, Role, Suspension, SuspensionKind, SuspensionState
from jobs.suspensions import service as suspensions
from jobs.suspensions.lookup import NO_JOB, jobs_concerned
from jobs.suspensions.reading import EFFECT_HINTS
from jobs.validation.checks import MAX_REASON
from jobs.validation.instants import as_text

KINDS = [
    (SuspensionKind.PAUSE.value, "pause: until it is lifted, or ends"),
    (SuspensionKind.BLACKOUT.value, "blackout: for a time span with an end"),
]
EFFECTS = [
    ("", "default: skip in a blackout, hold in a paused pool, else catch up"),
    *((effect.value, f"{effect.label.lower()}: {EFFECT_HINTS[effect]}") for effect in Effect),
]
INSTANT = "2026-11-18T12:00:00Z"
SERVICE_FIELDS = ("tag", "effect", "reason", "begins_at", "ends_at")


class SuspensionForm(ServiceForm):
    kind = choice(KINDS)
    tag = line("All jobs with this tag: name:value, or the name alone.", placeholder="team:payments")
    everything = forms.BooleanField(
        required=False,
        label="All jobs",
        widget=UnfoldBooleanSwitchWidget(),
        help_text="All jobs of the tenant, or of all tenants where none is chosen; instead of a job, a tag and a pool.",
    )
    effect = choice(EFFECTS)
    begins_at = line("Empty: now.", label="Begins", placeholder=INSTANT)
    ends_at = line("Empty: when it is lifted. A blackout needs an end.", label="Ends", placeholder=INSTANT)
    reason = forms.CharField(
        required=False,
        max_length=MAX_REASON,
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        help_text="Shown to everybody whom the suspension concerns.",
    )

    class Meta:
        model = Suspension
        fields = ("tenant", "pool", "job")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        suspension = kwargs.get("instance")
        kwargs["initial"] = {**(initial(suspension) if suspension else {}), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)
        self.fields["effect"].required = False
        for name in self.fields.keys() & set(fixed(suspension) if suspension else ()):
            self.fields[name].disabled = True

    def call_service(self) -> Suspension:
        given = self.cleaned_data
        data: dict[str, Any] = {name: given[name] or None for name in SERVICE_FIELDS}
        data["reason"] = given["reason"]
        if not data["effect"]:
            del data["effect"]
        data["pool"] = given["pool"].slug if given.get("pool") else None
        data["job"] = str(given["job"].pk) if given.get("job") else None
        if given["everything"]:
            data["everything"] = True
        if self.instance.pk:
            return suspensions.edit_suspension(self.instance, data)
        return suspensions.create_suspension(SuspensionKind(given["kind"]), data, tenant=given.get("tenant"))


def fixed(suspension: Suspension) -> tuple[str, ...]:
    begun = suspension.state(database_now()) != SuspensionState.PLANNED
    return ("kind", "job", "tag", "pool", "everything", "effect", "begins_at") if begun else ("kind",)


def initial(suspension: Suspension) -> dict[str, Any]:
    return {
        "kind": suspension.kind,
        "tag": suspension.tag or "",
        "everything": not suspension.names_jobs,
        "effect": suspension.effect,
        "begins_at": as_text(suspension.begins_at),
        "ends_at": as_text(suspension.ends_at) if suspension.ends_at else "",
        "reason": suspension.reason,
    }


class SuspensionStateFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(state, state.replace("_", " ")) for state in SuspensionState.values]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        state = self.value()
        return queryset.in_state(state, database_now()) if state else queryset


class SuspensionAdmin(ServiceAdmin):
    form = SuspensionForm
    needed = Role.OPERATOR
    list_display = ("concerns", "state_column", "kind", "effect", "begins", "ends", "reason_column", "by")
    list_filter = (SuspensionStateFilter, *by_choice("kind"), *related("tenant", "pool"))
    list_select_related = ("tenant", "pool", "job")
    search_fields = ("reason", "tag_name", "tag_value")
    ordering = ("-id",)
    sortable_by = ()
    autocomplete_fields = ("tenant", "pool", "job")
    actions_detail = ["lift"]
    actions_row = ["lift"]
    viewed_fields = (
        "concerns",
        ("state_column", "kind", "effect"),
        ("begins", "ends", "lifted"),
        "reason_column",
        ("by", "trail"),
    )
    readonly_fields = ("concerns", "state_column", "begins", "ends", "lifted", "reason_column", "by", "trail")

    concerns = column("concerns", lambda row: on_one_line(row.describe()))
    state_column = column("state", lambda row: state_label(row))
    begins = moment_column("begins_at", "begins")
    ends = column("ends", lambda row: moment(row.over_at) if row.over_at else "when lifted")
    lifted = column(
        "lifted", lambda row: row.lifted_at and format_html("{} by {}", moment(row.lifted_at), row.lifter)
    )
    reason_column = column("reason", lambda row: row.reason)
    by = column("by", lambda row: row.maker)
    trail = column("audit trail", audit_trail)

    def get_queryset(self, request: HttpRequest) -> Any:
        """Hide from members which operator suspended all tenants: they read "the platform"."""
        rows: QuerySet[Any] = super().get_queryset(request)
        names: dict[str, Any] = {"maker": F("created_by"), "lifter": F("lifted_by")}
        if not is_superuser(request):
            names = {
                name: Case(When(tenant=None, then=Value("the platform")), default=whose)
                for name, whose in names.items()
            }
        return rows.annotate(**names)

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        """Include suspensions of all tenants that may concern the user's jobs."""
        own = own_tenants(request)
        pools = Pool.objects.filter(Q(shared=True) | Q(tenants__in=own))
        of_all = Q(tenant=None) & (Q(pool=None) | Q(pool__in=pools))
        return rows.filter(Q(tenant__in=own) | of_all)

    def allows(self, request: HttpRequest, row: Any, needed: Role) -> bool:
        """Leave those of all tenants to operators of the platform, and those that are over as they are."""
        if row is not None and needed != Role.VIEWER:
            own = row.tenant_id is not None or is_superuser(request)
            if not own or is_over(row):
                return False
        return super().allows(request, row, needed)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not jobs_concerned(obj, obj.tenant):
            self.message_user(request, f"{sentence(NO_JOB)}.", messages.WARNING)

    def form_fieldsets(self, row: Any) -> Any:
        inputs = ("job", ("tag", "pool"), "everything", "effect", ("begins_at", "ends_at"), "reason")
        if row is not None:
            return [(None, {"fields": (("concerns", "state_column"), "kind", *inputs, ("by", "trail"))})]
        return [(None, {"fields": ("kind", "tenant", *inputs)})]

    def hidden_buttons(self, row: Any) -> set[str]:
        return {"lift"} if is_over(row) else set()

    @button(
        "Lift",
        "play_arrow",
        "It ends now: held runs go on, and missed times are settled by its effect.",
        variant="primary",
    )
    def lift(self, suspension: Suspension, given: dict[str, Any]) -> str:
        suspensions.lift_suspension(suspension, given["reason"])
        return f"The {suspension.kind} of {suspension.describe()} is over."


def is_over(suspension: Suspension) -> bool:
    return suspension.state(database_now()) == SuspensionState.OVER


def state_label(suspension: Suspension) -> SafeString:
    colours = {SuspensionState.PLANNED: BUSY, SuspensionState.IN_FORCE: BAD, SuspensionState.OVER: QUIET}
    return html.state_label(suspension.state(database_now()), colours)
