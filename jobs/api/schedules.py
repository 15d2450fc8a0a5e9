"""Serve previews: of the schedule of a job, and of a schedule that is not saved."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import tenant_of
from jobs.api.jobs import find_job, schedule_description
from jobs.api.openapi import operation, query
from jobs.api.requests import BASE, instant, read_limit, refuse_unknown_query
from jobs.api.serializers import InstantField, PlainField
from jobs.api.views import ResourceView
from jobs.clock import database_now
from jobs.models import Effect, JobStatus, Role, SuspensionKind
from jobs.schedules import describe, upcoming
from jobs.services.occurrences import schedule_of
from jobs.services.preview import Ahead, look_ahead
from jobs.spec import schedule as spec_schedule
from jobs.spec.calendar_lookup import found_calendar
from jobs.validation.checks import Json, expect_object, invalid, refuse_unknown, whole_number
from jobs.validation.schema import INSTANT, MAYBE_INSTANT, number, obj, ref, text

TIMES, MAX_TIMES = 10, 100
COMPONENTS = {
    "Schedule": spec_schedule.SCHEMA,
    "Preview": obj(
        {"schedule_description": text(), "now": INSTANT, "times": {"type": "array", "items": INSTANT}}
    ),
}
SUSPENSION = obj(
    {
        "id": text(format="uuid"),
        "kind": text(enum=list(SuspensionKind.values)),
        "effect": text(enum=list(Effect.values)),
        "reason": text(),
        "ends_at": MAYBE_INSTANT,
        "held": {"type": "boolean", "description": "Its run waits; false: it gets none."},
        "link": text(),
    },
    title="AheadSuspension",
    nullable=True,
    description="The pause or blackout that it falls under, as far as is known by now.",
)


class AheadSerializer(serializers.Serializer[Ahead]):
    planned_at = InstantField()
    starts_at = InstantField(
        allow_null=True, help_text="When its run may go; null: it gets none, or it is not known yet."
    )
    window_ends_at = InstantField(allow_null=True, help_text="Of a flexible window.")
    skipped = serializers.SerializerMethodField()
    moved_to = InstantField(source="override.moved_to", allow_null=True)
    override = serializers.UUIDField(
        source="override.public_id", allow_null=True, help_text="Of this planned time."
    )
    suspension = serializers.SerializerMethodField()
    description = serializers.CharField()

    def get_skipped(self, ahead: Ahead) -> bool:
        return ahead.override is not None and ahead.override.moved_to is None

    @extend_schema_field(SUSPENSION)
    def get_suspension(self, ahead: Ahead) -> Json | None:
        found = ahead.suspension
        if found is None:
            return None
        return {
            "id": str(found.public_id),
            "kind": found.kind,
            "effect": found.effect,
            "reason": found.reason,
            "ends_at": instant(found.over_at),
            "held": ahead.held,
            "link": f"{BASE}/{found.kind}s/{found.public_id}",
        }


class JobPreviewSerializer(serializers.Serializer[Any]):
    schedule_description = serializers.CharField()
    now = InstantField()
    times = serializers.ListField(child=InstantField())
    status = PlainField(text("While it is paused, none of them gets a run.", enum=list(JobStatus.values)))
    ahead = AheadSerializer(many=True)


class JobPreview(ResourceView):
    tag = "jobs"
    serializer_class = JobPreviewSerializer

    @operation(
        "preview_job",
        "The next planned times, and what will become of each",
        errors=(400, 404),
        parameters=(
            query(
                "limit", f"How many, 1 to {MAX_TIMES}.", number(minimum=1, maximum=MAX_TIMES), default=TIMES
            ),
        ),
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ("limit",))
        count = read_limit(request, TIMES, MAX_TIMES)
        spec, now = job.spec, database_now()
        found = {
            "schedule_description": schedule_description(spec),
            "now": now,
            "times": upcoming(schedule_of(spec), now, count, anchor=spec.anchor_at),
            "status": job.status,
            "ahead": look_ahead(job, spec, now, count),
        }
        return self.answer(found)


class SchedulePreview(APIView):
    write_role = Role.VIEWER

    @operation(
        "preview_schedule",
        "The planned times of a schedule nobody has saved",
        tag="schedules",
        takes=obj(
            {"schedule": ref("Schedule"), "limit": number(minimum=1, maximum=MAX_TIMES, default=TIMES)},
            required=("schedule",),
            title="PreviewRequest",
        ),
        gives=ref("Preview"),
        errors=(400,),
        about="A preview changes nothing, so a viewer's key may ask for it.",
    )
    def post(self, request: Request) -> Response:
        given = expect_object(request.data, "")
        if "schedule" not in given:
            hint = 'such as {"schedule": {"cron": "0 9 * * *"}, "limit": 10}'
            raise invalid("schedule", "schedule is required", hint, "required")
        refuse_unknown(given, ("schedule", "limit"), "")
        tenant, hash_id = tenant_of(request), "preview"
        schedule, _ = spec_schedule.read_named(tenant, given["schedule"], hash_id, find=found_calendar)
        count, now = whole_number(given.get("limit", TIMES), "limit", 1, MAX_TIMES), database_now()
        times = [instant(planned) for planned in upcoming(schedule, now, count, anchor=now)]
        return Response({"schedule_description": describe(schedule), "now": instant(now), "times": times})
