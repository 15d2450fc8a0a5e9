"""Calendars over HTTP, by their names."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import calendars
from jobs.api import calendar_schema as schema
from jobs.api.authentication import tenant_of
from jobs.api.representation import BASE, instant
from jobs.api.views import answer_once, paged, refuse_unknown_query
from jobs.idempotency import Answer
from jobs.input_checks import Json
from jobs.models import Calendar
from jobs.refusals import Missing


class Calendars(APIView):
    newest_first = ("created_at", "id")

    @schema.list_calendars
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("limit", "cursor"))
        own = Calendar.objects.of(tenant_of(request))
        return paged(self, request, own, lambda page: [calendar_json(calendar) for calendar in page])

    @schema.create_calendar
    def post(self, request: Request) -> Response:
        def act() -> Answer:
            return Answer(201, calendar_json(calendars.create_calendar(tenant_of(request), request.data)))

        return answer_once(request, act)


class OneCalendar(APIView):
    @schema.read_calendar
    def get(self, request: Request, name: str) -> Response:
        return Response(calendar_json(find_calendar(request, name)))

    @schema.edit_calendar
    def patch(self, request: Request, name: str) -> Response:
        edited = calendars.edit_calendar(find_calendar(request, name), request.data)
        return Response(calendar_json(edited))

    @schema.delete_calendar
    def delete(self, request: Request, name: str) -> Response:
        calendars.delete_calendar(find_calendar(request, name))
        return Response(status=204)


def find_calendar(request: Request, name: str) -> Calendar:
    """Of this tenant. One of another looks the same as none."""
    known = "\x00" not in name
    calendar = Calendar.objects.of(tenant_of(request)).filter(name=name).first() if known else None
    if calendar is None:
        raise Missing(f"there is no calendar {name[:60]!r}")
    return calendar


def calendar_json(calendar: Calendar) -> Json:
    return {
        **calendars.facts(calendar),
        "edition": calendar.edition,
        "rearming": calendar.rearmed_to is not None,
        "created_at": instant(calendar.created_at),
        "updated_at": instant(calendar.updated_at),
        "links": {
            "self": f"{BASE}/calendars/{calendar.name}",
            "jobs": f"{BASE}/jobs?calendar={calendar.name}",
        },
    }
