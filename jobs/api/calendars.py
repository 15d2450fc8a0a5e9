"""Serve calendars by name. jobs/calendars/service.py reads the bodies."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.openapi import creation, operation
from jobs.api.serializers import BodySerializer, InstantField, LinksField, PlainField
from jobs.api.views import ListView, NamedView, ResourceView
from jobs.calendars import service as calendars
from jobs.models import Calendar
from jobs.schedules.calendars.parsing import MAX_DATES, MAX_NAME_LENGTH, MAX_SPANS, TIME, WEEK_DAYS
from jobs.validation.schema import obj, text

SPANS = {
    "type": "array",
    "maxItems": MAX_SPANS,
    "items": {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": text(
            "HH:MM, the end up to 24:00; a span over midnight is written as two.",
            pattern=f"^({TIME.pattern})$",
        ),
        "example": ["09:00", "17:00"],
    },
}
DATES = {
    "type": "array",
    "maxItems": MAX_DATES,
    "description": "Closed dates; a plain date for one without a name.",
    "items": {
        "oneOf": [
            obj(
                {"date": text(format="date"), "name": text(maxLength=MAX_NAME_LENGTH)},
                required=("date",),
                title="ClosedDate",
            ),
            text(format="date"),
        ]
    },
}
WEEKLY = obj(
    dict.fromkeys(WEEK_DAYS, SPANS),
    may_lack=WEEK_DAYS,
    title="OpenHours",
    description="Open hours. A day left out is closed; without any day it is always open.",
)


NAME_SCHEMA = text(
    "Small letters, digits and inner hyphens; it never changes.",
    pattern=f"^{calendars.SLUG.pattern}$",
    example="us-holidays",
)


class CalendarName(serializers.Serializer[Any]):
    name = PlainField(NAME_SCHEMA)


class CalendarFields(serializers.Serializer[Any]):
    description = serializers.CharField(required=False, max_length=calendars.MAX_DESCRIPTION_LENGTH)
    timezone = PlainField(
        text("Of the IANA database; days and hours are those of its clock.", format="iana-time-zone"),
        default="UTC",
    )
    dates = PlainField(DATES, required=False)
    weekly = PlainField(WEEKLY, required=False)


class NewCalendarSerializer(BodySerializer, CalendarName, CalendarFields):
    pass


class CalendarChangesSerializer(BodySerializer, CalendarFields):
    """What shall change; nested values are replaced whole."""


class CalendarSerializer(CalendarName, CalendarFields):
    edition = serializers.IntegerField(help_text="Raised by every edit of what is open.")
    rearming = serializers.SerializerMethodField(
        help_text="Its last edit has not come to all of its jobs yet."
    )
    created_at = InstantField()
    updated_at = InstantField()
    links = LinksField(
        self=lambda calendar: f"/calendars/{calendar.name}",
        jobs=lambda calendar: f"/jobs?calendar={calendar.name}",
    )

    def get_rearming(self, calendar: Calendar) -> bool:
        return calendar.rearmed_to is not None


class CalendarView(ResourceView):
    tag = "calendars"
    queryset = Calendar.objects.all()
    serializer_class = CalendarSerializer

    def get_queryset(self) -> QuerySet[Calendar]:
        return Calendar.objects.of(tenant_of(self.request))


@extend_schema_view(get=operation("list_calendars", "Calendars, newest first", errors=(400,)))
class Calendars(CalendarView, ListView):
    newest_first = ("created_at", "name")

    @creation(
        "create_calendar",
        "Create a calendar",
        takes=NewCalendarSerializer,
        errors=(400, 409, 422),
        about="Jobs name it in their schedules: closed times are left out, or moved to another day.",
    )
    def post(self, request: Request) -> Response:
        return self.create_once(lambda: calendars.create_calendar(tenant_of(request), request.data))


@extend_schema_view(get=operation("read_calendar", "One calendar", errors=(404,)))
class OneCalendar(CalendarView, NamedView):
    missing = "there is no calendar {}"
    path_schemas = {"name": NAME_SCHEMA}

    @operation(
        "edit_calendar",
        "Change a calendar",
        takes=CalendarChangesSerializer,
        errors=(400, 404),
        about="The jobs that plan by it get their next times anew, usually within a second; until then each keeps "
        "the one next time it had.",
    )
    def patch(self, request: Request, **_: Any) -> Response:
        return self.answer(calendars.edit_calendar(self.get_object(), request.data))

    @operation(
        "delete_calendar",
        "Delete a calendar",
        status=204,
        errors=(404, 409),
        about="Only while no job plans by it.",
    )
    def delete(self, request: Request, **_: Any) -> Response:
        calendars.delete_calendar(self.get_object())
        return Response(status=204)
