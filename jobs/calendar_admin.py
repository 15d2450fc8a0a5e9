"""Calendars in the admin: members those of their tenants, operators of the platform all."""

from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from auditlog.models import AuditEntry
from jobs import calendars
from jobs.calendar_form import CalendarForm
from jobs.display import NOTHING, moment
from jobs.models import Calendar
from jobs.schedules.calendar_spec import WEEK_DAYS
from jobs.staff import (
    GOOD,
    WARNING,
    KeptByService,
    OwnRelated,
    button,
    found_or_missing,
    go_to,
    label,
    link,
    list_of,
    telling,
)

JOBS_SHOWN = 10


class CalendarAdmin(KeptByService):
    form = CalendarForm
    list_display = ("name", "tenant", "description", "timezone", "closed", "open_on", "state", "edited")
    list_filter = (("tenant", OwnRelated),)
    list_select_related = ("tenant",)
    search_fields = ("name", "description")
    ordering = ("tenant_id", "name")
    sortable_by = ()
    autocomplete_fields = ("tenant",)
    actions = None
    actions_detail = ["delete"]
    looked_at = (("name", "tenant"), "description", "timezone", "closed", "open_on", ("state", "used_by"))
    readonly_fields = ("closed", "open_on", "state", "used_by", "trail")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(deleted_at=None)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False  # the button `Delete` is the soft one

    def has_remove_permission(self, request: HttpRequest, object_id: str | None = None) -> bool:
        calendar = self.get_object(request, object_id) if object_id else None
        return calendar is not None and self.has_change_permission(request, calendar)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and not self.has_change_permission(request, obj):
            return [(None, {"fields": self.looked_at})]
        named = (("name", "timezone"), "description")
        hours = "Empty: closed. All of them empty: open all the time, but for the dates."
        return [
            (None, {"fields": (*named, ("state", "used_by", "trail")) if obj else ("tenant", *named)}),
            ("Closed", {"fields": ("dates",)}),
            ("Open", {"fields": WEEK_DAYS, "description": hours}),
        ]

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        # The other fields are the form's own; unfold cannot find them on the model.
        return super().get_form(request, obj, change, **{**kwargs, "fields": () if obj else ("tenant",)})

    @button(
        "Delete",
        icon="delete",
        asks="Only while no job plans by it.",
        variant="danger",
        permission="remove",
    )
    def delete(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        calendar = found_or_missing(self.get_object(request, object_id))
        with telling(request, f"The calendar {calendar} is deleted."):
            calendars.delete_calendar(calendar, form.cleaned_data["reason"])
        return go_to(request, list_of(Calendar))

    @admin.display(description="closed")
    def closed(self, calendar: Calendar) -> str:
        return f"{len(calendar.dates)} date{'s' if len(calendar.dates) != 1 else ''}"

    @admin.display(description="open")
    def open_on(self, calendar: Calendar) -> str:
        return ", ".join(day for day in WEEK_DAYS if day in calendar.weekly) or "every day"

    @admin.display(description="state")
    def state(self, calendar: Calendar) -> SafeString:
        return label("coming to its jobs", WARNING) if calendar.rearmed_to else label("in use", GOOD)

    @admin.display(description="jobs")
    def used_by(self, calendar: Calendar) -> str:
        """Some of them: nobody counts a hundred thousand."""
        users = calendars.users(calendar).order_by("job_id").values_list("job__name", flat=True)
        names = list(users[: JOBS_SHOWN + 1])
        more = " …" if len(names) > JOBS_SHOWN else ""
        return ", ".join(names[:JOBS_SHOWN]) + more if names else NOTHING

    @admin.display(description="edited")
    def edited(self, calendar: Calendar) -> SafeString | str:
        return moment(calendar.updated_at)

    @admin.display(description="audit trail")
    def trail(self, calendar: Calendar) -> SafeString:
        return link(list_of(AuditEntry, object_type="calendar", object_id=calendar.pk), "Audit trail")
