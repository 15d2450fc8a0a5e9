"""Calendars in the admin. The service validates the form, and its errors appear at the fields."""

from typing import Any

from django import forms
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminTextareaWidget

from jobs.admin.columns import column, moment_column
from jobs.admin.forms.base import ServiceForm, error_text, line
from jobs.admin.html import GOOD, WARNING, label
from jobs.admin.usage import UsedByJobsAdmin
from jobs.calendars import service as calendars
from jobs.errors import FieldError
from jobs.models import Calendar
from jobs.models.jobs import JobVersionQuerySet
from jobs.schedules.calendars.parsing import WEEK_DAYS
from jobs.validation.checks import Json

LABELS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURS = "09:00-12:00, 13:00-17:00"


class CalendarForm(ServiceForm):
    name = line(
        "Lower-case letters, digits and inner hyphens; jobs refer to it by this name.",
        placeholder="us-holidays",
    )
    description = line()
    timezone = line("The zone of its dates and hours, a name of the IANA database.")
    dates = forms.CharField(
        required=False,
        label="Closed on",
        help_text="One date per line, with a name behind it: 2026-12-25 Christmas.",
        widget=UnfoldAdminTextareaWidget(attrs={"rows": 12, "spellcheck": "false", "class": "font-mono"}),
    )
    mon, tue, wed, thu, fri, sat, sun = (line(label=label, placeholder=HOURS) for label in LABELS)

    class Meta:
        model = Calendar
        fields = ("tenant",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        calendar = kwargs.get("instance")
        kwargs["initial"] = {**initial(calendar), **(kwargs.get("initial") or {})}
        super().__init__(*args, **kwargs)
        if calendar:
            self.fields["name"].disabled = True

    def call_service(self) -> Calendar:
        given = self.cleaned_data
        data: Json = {name: given[name] for name in ("name", "description")}
        data |= {"timezone": given["timezone"] or "UTC", "dates": dates_of(given["dates"])}
        data["weekly"] = {day: spans_of(given[day]) for day in WEEK_DAYS if given[day].strip()}
        if self.instance.pk:
            return calendars.edit_calendar(self.instance, data)
        return calendars.create_calendar(given["tenant"], data)

    def field_for(self, error: FieldError) -> tuple[str | None, str]:
        """Find the field of a path: `dates[3]` is the fourth date, `weekly.mon[0]` the first span of Monday."""
        whole, _, rest = error.field.partition(".")
        name, _, number = (rest if whole == "weekly" and rest else whole).partition("[")
        where = f"Date {int(number.rstrip(']')) + 1}: " if name == "dates" and number else ""
        return name if name in self.fields else None, where + error_text(error)


def initial(calendar: Calendar | None) -> Json:
    if calendar is None:
        return {"timezone": "UTC"}
    dates = (f"{entry['date']} {entry.get('name', '')}".strip() for entry in calendar.dates)
    weekly = {day: ", ".join("-".join(span) for span in calendar.weekly.get(day, [])) for day in WEEK_DAYS}
    shown = {name: getattr(calendar, name) for name in ("name", "description", "timezone")}
    return {**shown, "dates": "\n".join(dates), **weekly}


def dates_of(text: str) -> list[Json]:
    lines = (line.strip().partition(" ") for line in text.splitlines() if line.strip())
    return [{"date": date, "name": name.strip()} for date, _, name in lines]


def spans_of(text: str) -> list[list[str]]:
    return [[time.strip() for time in span.split("-")] for span in text.split(",")]


class CalendarAdmin(UsedByJobsAdmin):
    form = CalendarForm
    list_display = ("name", "tenant", "description", "timezone", "closed", "open_on", "state", "edited")
    search_fields = ("name", "description")
    viewed_fields = (("name", "tenant"), "description", "timezone", "closed", "open_on", ("state", "used_by"))
    readonly_fields = ("closed", "open_on", "state", "used_by", "trail")

    closed = column("closed", lambda row: f"{len(row.dates)} date{'s' if len(row.dates) != 1 else ''}")
    open_on = column(
        "open", lambda row: ", ".join(day for day in WEEK_DAYS if day in row.weekly) or "every day"
    )
    state = column(
        "state", lambda row: label("being applied", WARNING) if row.rearmed_to else label("in use", GOOD)
    )
    edited = moment_column("updated_at", "edited")
    delete_by_service = staticmethod(calendars.delete_calendar)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(deleted_at=None)

    def users(self, row: Calendar) -> JobVersionQuerySet:
        # Not by name: a calendar may have a hundred thousand users, which would be sorted for a few names.
        return row.versions.in_use().order_by("job_id")

    def form_fieldsets(self, row: Any) -> Any:
        named = (("name", "timezone"), "description")
        hours = "Leave a day empty to close it, and all of them to be open at any time except on the dates."
        return [
            (None, {"fields": (*named, ("state", "used_by", "trail")) if row else ("tenant", *named)}),
            ("Closed", {"fields": ("dates",)}),
            ("Open", {"fields": WEEK_DAYS, "description": hours}),
        ]
