"""Pauses and blackouts in the admin: members those of their tenants, operators of the platform all."""

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Case, F, Model, Q, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.contrib.filters.admin import ChoicesDropdownFilter

from auditlog.models import AuditEntry
from jobs import stops
from jobs.database_clock import database_now
from jobs.display import NOTHING, moment
from jobs.models import Pool, Role, Stop
from jobs.staff import (
    BAD,
    BUSY,
    QUIET,
    KeptByService,
    OwnRelated,
    button,
    found_or_missing,
    go_to,
    is_superuser,
    label,
    link,
    list_of,
    own_tenants,
    page_of,
    telling,
    together,
)
from jobs.stop_form import StopForm

STATE_COLOURS = {stops.PLANNED: BUSY, stops.IN_FORCE: BAD, stops.OVER: QUIET}


class State(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, str]]:
        return [(state, state.replace("_", " ")) for state in stops.STATES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return (
            queryset.filter(stops.in_state(self.value() or "", database_now())) if self.value() else queryset
        )


class StopAdmin(KeptByService):
    form = StopForm
    needed = Role.OPERATOR
    list_display = ("what", "shown_state", "kind", "effect", "begins", "ends", "said", "by")
    list_filter = (State, ("kind", ChoicesDropdownFilter), ("tenant", OwnRelated), ("pool", OwnRelated))
    list_select_related = ("tenant", "pool")
    search_fields = ("note", "tag_name", "tag_value")
    ordering = ("-id",)
    sortable_by = ()
    autocomplete_fields = ("tenant", "pool")
    actions_detail = ["lift"]
    actions_row = ["lift"]
    actions = None
    looked_at = (
        "what",
        ("shown_state", "kind", "effect"),
        ("begins", "ends", "lifted"),
        "said",
        ("by", "trail"),
    )
    readonly_fields = ("what", "shown_state", "begins", "ends", "lifted", "said", "by", "trail")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """To members it is the platform who stops everybody, not one of its people."""
        rows: QuerySet[Any] = super().get_queryset(request)
        names: dict[str, Any] = {"maker": F("created_by"), "lifter": F("lifted_by")}
        if not is_superuser(request):
            names = {
                name: Case(When(tenant=None, then=Value("the platform")), default=whose)
                for name, whose in names.items()
            }
        named: QuerySet[Any] = rows.annotate(**names)
        return named

    def visible(self, rows: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
        """Those of the platform that may concern one's jobs as well."""
        own = own_tenants(request)
        pools = Pool.objects.filter(Q(shared=True) | Q(tenants__in=own))
        of_all = Q(tenant=None) & (Q(pool=None) | Q(pool__in=pools))
        return rows.filter(Q(tenant__in=own) | of_all)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        if isinstance(obj, Stop) and not self.is_changeable(request, obj):
            return False
        return super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # lifting ends it, and it stays readable

    def has_operate_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        stop = self.get_object(request, object_id) if object_id else None
        if stop is not None and not self.is_changeable(request, stop):
            return False
        return super().has_operate_permission(request, object_id)

    def is_changeable(self, request: HttpRequest, stop: Stop) -> bool:
        of_mine = stop.tenant_id is not None or is_superuser(request)
        return of_mine and stops.state_of(stop, database_now()) != stops.OVER

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self.looked_at})]
        asked = (("tag", "pool"), "everything", "effect", ("begins_at", "ends_at"), "note")
        if obj is not None:
            return [(None, {"fields": (("what", "shown_state"), "kind", *asked, ("by", "trail"))})]
        return [(None, {"fields": ("kind", "tenant", *asked)})]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The other fields are the form's own; unfold cannot find them on the model.
        fields = ("pool",) if obj else ("tenant", "pool")
        made: Any = super().get_form(request, obj, change, **{**kwargs, "fields": fields})
        made.of_everybody = is_superuser(request)
        return made

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        stop = self.get_object(request, str(object_id))
        over = stop is not None and stops.state_of(stop, database_now()) == stops.OVER
        return [] if over else super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @button(
        "Lift",
        icon="play_arrow",
        asks="It is over now: what waited goes on, and what was missed is settled as it says.",
        variant="primary",
    )
    def lift(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        stop = found_or_missing(self.get_object(request, object_id))
        with telling(request, f"The {stop.kind} of {stops.in_words(stop)} is over."):
            stops.lift_stop(stop, form.cleaned_data["reason"])
        return go_to(request, page_of(stop))

    @admin.display(description="concerns")
    def what(self, stop: Stop) -> SafeString:
        return together(stops.in_words(stop))

    @admin.display(description="state")
    def shown_state(self, stop: Stop) -> SafeString:
        state = stops.state_of(stop, database_now())
        return label(state.replace("_", " "), STATE_COLOURS[state])

    @admin.display(description="begins")
    def begins(self, stop: Stop) -> SafeString | str:
        return moment(stop.begins_at)

    @admin.display(description="ends")
    def ends(self, stop: Stop) -> SafeString | str:
        return moment(stops.over_at(stop)) if stops.over_at(stop) else "when it is lifted"

    @admin.display(description="lifted")
    def lifted(self, stop: Any) -> SafeString | str:
        return format_html("{} by {}", moment(stop.lifted_at), stop.lifter) if stop.lifted_at else NOTHING

    @admin.display(description="note")
    def said(self, stop: Stop) -> str:
        return stop.note or NOTHING

    @admin.display(description="by")
    def by(self, stop: Any) -> str:
        return stop.maker or NOTHING

    @admin.display(description="audit trail")
    def trail(self, stop: Stop) -> SafeString:
        return link(list_of(AuditEntry, object_type="stop", object_id=stop.pk), "Audit trail")
