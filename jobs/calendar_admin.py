"""Calendars in the admin: members those of their tenants, operators of the platform all."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from jobs import calendars
from jobs.calendar_form import CalendarForm
from jobs.display import moment
from jobs.models import Calendar, JobVersion
from jobs.schedules.calendar_spec import WEEK_DAYS
from jobs.staff import GOOD, WARNING, label
from jobs.used_by_admin import UsedByJobs


class CalendarAdmin(UsedByJobs):
    form = CalendarForm
    list_display = ("name", "tenant", "description", "timezone", "closed", "open_on", "state", "edited")
    search_fields = ("name", "description")
    looked_at = (("name", "tenant"), "description", "timezone", "closed", "open_on", ("state", "used_by"))
    readonly_fields = ("closed", "open_on", "state", "used_by", "trail")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(deleted_at=None)

    def users(self, calendar: Calendar) -> QuerySet[JobVersion]:
        # By name a hundred thousand of them would be sorted.
        return calendars.users(calendar).order_by("job_id")

    def delete_by_service(self, calendar: Calendar, reason: str) -> None:
        calendars.delete_calendar(calendar, reason)

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

    @admin.display(description="closed")
    def closed(self, calendar: Calendar) -> str:
        return f"{len(calendar.dates)} date{'s' if len(calendar.dates) != 1 else ''}"

    @admin.display(description="open")
    def open_on(self, calendar: Calendar) -> str:
        return ", ".join(day for day in WEEK_DAYS if day in calendar.weekly) or "every day"

    @admin.display(description="state")
    def state(self, calendar: Calendar) -> SafeString:
        return label("coming to its jobs", WARNING) if calendar.rearmed_to else label("in use", GOOD)

    @admin.display(description="edited")
    def edited(self, calendar: Calendar) -> SafeString | str:
        return moment(calendar.updated_at)
