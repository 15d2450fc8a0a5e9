"""A calendar as a form. The service alone judges it, and its refusals land at the fields."""

from typing import Any

from django import forms
from unfold.widgets import UnfoldAdminTextareaWidget

from jobs import calendars
from jobs.input_checks import Json
from jobs.models import Calendar
from jobs.refusals import FieldError
from jobs.schedules.calendar_spec import WEEK_DAYS
from jobs.service_form import ServiceForm, line, refusal

LABELS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
HOURS = "09:00-12:00, 13:00-17:00"


class CalendarForm(ServiceForm):
    name = line("Small letters, digits and inner hyphens; jobs name it so.", placeholder="us-holidays")
    description = line()
    timezone = line("Days and hours are those of its clock. A name of the IANA database.")
    dates = forms.CharField(
        required=False,
        label="Closed on",
        help_text="A date in each line, and behind it what day it is: 2026-12-25 Christmas.",
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

    def ask_service(self) -> Calendar:
        given = self.cleaned_data
        data: Json = {name: given[name] for name in ("name", "description")}
        data |= {"timezone": given["timezone"] or "UTC", "dates": dates_of(given["dates"])}
        data["weekly"] = {day: spans_of(given[day]) for day in WEEK_DAYS if given[day].strip()}
        if self.instance.pk:
            return calendars.edit_calendar(self.instance, data)
        return calendars.create_calendar(given["tenant"], data)

    def field_for(self, error: FieldError) -> tuple[str | None, str]:
        """`dates[3]` is the fourth of the dates, `weekly.mon[0]` the first span of Monday."""
        whole, _, rest = error.field.partition(".")
        name, _, number = (rest if whole == "weekly" and rest else whole).partition("[")
        where = f"Date {int(number.rstrip(']')) + 1}: " if name == "dates" and number else ""
        return name if name in self.fields else None, where + refusal(error)


def initial(calendar: Calendar | None) -> Json:
    if calendar is None:
        return {"timezone": "UTC"}
    dates = (f"{entry['date']} {entry.get('name', '')}".strip() for entry in calendar.dates)
    weekly = {day: ", ".join("-".join(span) for span in calendar.weekly.get(day, [])) for day in WEEK_DAYS}
    return {
        "name": calendar.name,
        "description": calendar.description,
        "timezone": calendar.timezone,
        "dates": "\n".join(dates),
        **weekly,
    }


def dates_of(text: str) -> list[Json]:
    lines = (line.strip().partition(" ") for line in text.splitlines() if line.strip())
    return [{"date": date, "name": name.strip()} for date, _, name in lines]


def spans_of(text: str) -> list[list[str]]:
    return [[time.strip() for time in span.split("-")] for span in text.split(",")]
