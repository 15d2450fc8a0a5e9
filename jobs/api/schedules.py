"""Serve previews of schedules that are not saved."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import tenant_of
from jobs.api.openapi import operation
from jobs.api.requests import instant, read_count
from jobs.clock import database_now
from jobs.models import Role
from jobs.schedules import describe, upcoming
from jobs.spec import schedule as spec_schedule
from jobs.spec.calendar_lookup import found_calendar
from jobs.validation.checks import expect_object, invalid
from jobs.validation.schema import INSTANT, number, obj, ref, text

COMPONENTS = {
    "Schedule": spec_schedule.SCHEMA,
    "Preview": obj(
        {"schedule_in_words": text(), "now": INSTANT, "times": {"type": "array", "items": INSTANT}},
        required=("schedule_in_words", "now", "times"),
    ),
}


class SchedulePreview(APIView):
    write_role = Role.VIEWER

    @operation(
        "preview_schedule",
        "The planned times of a schedule nobody has saved",
        tag="schedules",
        takes=obj(
            {"schedule": ref("Schedule"), "n": number(minimum=1, maximum=100, default=10)},
            required=("schedule",),
        ),
        gives=ref("Preview"),
        errors=(400,),
        about="A preview changes nothing, so a viewer's key may ask for it.",
    )
    def post(self, request: Request) -> Response:
        given = expect_object(request.data, "", ("schedule", "n"))
        if "schedule" not in given:
            raise invalid("schedule", "schedule is required", code="required")
        tenant, hash_id = tenant_of(request), "preview"
        schedule, _ = spec_schedule.read_named(tenant, given["schedule"], hash_id, find=found_calendar)
        count, now = read_count(given.get("n", 10)), database_now()
        times = [instant(planned) for planned in upcoming(schedule, now, count, anchor=now)]
        return Response({"schedule_in_words": describe(schedule), "now": instant(now), "times": times})
