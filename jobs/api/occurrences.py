"""Serve single planned times of a job, and its next ones. jobs/services/overrides.py reads the bodies."""

from typing import Any

from django.db.models import QuerySet
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.generics import RetrieveAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.jobs import find_job, schedule_in_words
from jobs.api.openapi import operation, query
from jobs.api.requests import BASE, MAX_TIMES, instant, read_count, refuse_unknown_query
from jobs.api.serializers import BodySerializer, InstantField, LinksField, PlainField
from jobs.api.views import ListView, ResourceView
from jobs.clock import database_now
from jobs.models import Effect, Job, JobStatus, Override, Role, SuspensionKind
from jobs.schedules import upcoming
from jobs.services import overrides
from jobs.services.occurrences import schedule_of
from jobs.services.preview import Ahead, look_ahead
from jobs.suspensions.reading import MAX_NOTE_LENGTH
from jobs.validation.checks import Json
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import MAYBE_INSTANT, number, obj, text
from scheduler_project.sdk.ids import run_id

ABOUT_SKIP = "True: it gets no run. Instead of move_to."
ABOUT_MOVE = "Its run goes then, earlier or later."
ABOUT_NOTE = "Shown with the run, or with the row that says why there is none."
SUSPENSION = obj(
    {
        "id": number(),
        "kind": text(enum=list(SuspensionKind.values)),
        "effect": text(enum=list(Effect.values)),
        "note": text(),
        "ends_at": MAYBE_INSTANT,
        "held": {"type": "boolean", "description": "Its run waits; false: it gets none."},
        "link": text(),
    },
    nullable=True,
    description="The pause or blackout that it falls under, as far as is known by now.",
)


class NewChangedTimeSerializer(BodySerializer):
    planned_at = InstantField(help_text="One of the job's planned times.")
    skip = serializers.BooleanField(required=False, help_text=ABOUT_SKIP)
    move_to = InstantField(required=False, allow_null=True, help_text=ABOUT_MOVE)
    note = serializers.CharField(required=False, max_length=MAX_NOTE_LENGTH, help_text=ABOUT_NOTE)


class ChangedTimeSerializer(serializers.Serializer[Override]):
    id = serializers.IntegerField()
    planned_at = InstantField(help_text="One of the job's planned times.")
    skip = serializers.SerializerMethodField(help_text=ABOUT_SKIP)
    move_to = InstantField(source="moved_to", allow_null=True, help_text=ABOUT_MOVE)
    note = serializers.CharField(max_length=MAX_NOTE_LENGTH, help_text=ABOUT_NOTE)
    made_by = serializers.CharField()
    created_at = InstantField()
    done_at = InstantField(allow_null=True, help_text="Its run was made, or the row that says why not.")
    run = serializers.SerializerMethodField(help_text="Where it is shown, once it is done.")
    links = LinksField(self=lambda change: f"/jobs/{change.job_id}/times/{change.pk}")

    def get_skip(self, change: Override) -> bool:
        return change.moved_to is None

    def get_run(self, change: Override) -> str | None:
        return f"{BASE}/runs/{run_id(change.job_id, change.planned_at)}" if change.done_at else None


class AheadSerializer(serializers.Serializer[Ahead]):
    planned_at = InstantField()
    starts_at = InstantField(
        allow_null=True, help_text="When its run may go; null: it gets none, or it is not known yet."
    )
    window_ends_at = InstantField(allow_null=True, help_text="Of a flexible window.")
    skipped = serializers.SerializerMethodField()
    moved_to = InstantField(source="change.moved_to", allow_null=True)
    change = serializers.IntegerField(source="change.pk", allow_null=True, help_text="Of this planned time.")
    suspension = serializers.SerializerMethodField()
    in_words = serializers.CharField()

    def get_skipped(self, ahead: Ahead) -> bool:
        return ahead.change is not None and ahead.change.moved_to is None

    @extend_schema_field(SUSPENSION)
    def get_suspension(self, ahead: Ahead) -> Json | None:
        found = ahead.suspension
        if found is None:
            return None
        return {
            "id": found.id,
            "kind": found.kind,
            "effect": found.effect,
            "note": found.note,
            "ends_at": instant(found.over_at),
            "held": ahead.held,
            "link": f"{BASE}/{found.kind}s/{found.id}",
        }


class JobPreviewSerializer(serializers.Serializer[Any]):
    schedule_in_words = serializers.CharField()
    now = InstantField()
    times = serializers.ListField(child=InstantField())
    status = PlainField(text("While it is paused, none of them gets a run.", enum=list(JobStatus.values)))
    ahead = AheadSerializer(many=True)


class ChangedTimeView(ResourceView):
    tag = "times"
    write_role = Role.OPERATOR
    queryset = Override.objects.all()
    serializer_class = ChangedTimeSerializer

    @cached_property
    def job(self) -> Job:
        return find_job(self.request, self.kwargs["job_id"])

    def get_queryset(self) -> QuerySet[Override]:
        return self.job.overrides.all()


@extend_schema_view(
    get=operation(
        "list_changed_times", "Planned times that somebody changed, the latest first", errors=(400, 404)
    )
)
class ChangedTimes(ChangedTimeView, ListView):
    newest_first = ("planned_at", "id")

    @operation(
        "change_time",
        "Skip or move one planned time",
        takes=NewChangedTimeSerializer,
        status=201,
        errors=(400, 404, 409, 422),
        once=True,
        about="A later request for the same planned time replaces it. The run of a moved time keeps its "
        "planned_at.",
    )
    def post(self, request: Request, **_: Any) -> Response:
        job = self.job
        return self.create_once(lambda: overrides.set_override(job, request.data))


@extend_schema_view(get=operation("read_changed_time", "One changed time", errors=(404,)))
class OneChangedTime(ChangedTimeView, RetrieveAPIView[Override]):
    def get_object(self) -> Override:
        given: str = self.kwargs["change_id"]
        mine = self.get_queryset().filter(pk=read_number(given))
        return first_or_missing(mine, f"the job has no changed time {given[:60]}")

    @operation(
        "restore_time",
        "Take a change back",
        status=204,
        errors=(404, 409),
        about="As long as its planned time has not come.",
    )
    def delete(self, request: Request, change_id: str, **_: Any) -> Response:
        overrides.remove_override(self.job, read_number(change_id))
        return Response(status=204)


class JobPreview(ResourceView):
    tag = "jobs"
    serializer_class = JobPreviewSerializer

    @operation(
        "preview_job",
        "The next planned times, and what will become of each",
        errors=(400, 404),
        parameters=(query("n", f"How many, 1 to {MAX_TIMES}.", int, default=10),),
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ("n",))
        count = read_count(request.query_params.get("n", "10"))
        spec, now = job.spec, database_now()
        found = {
            "schedule_in_words": schedule_in_words(spec),
            "now": now,
            "times": upcoming(schedule_of(spec), now, count, anchor=spec.anchor_at),
            "status": job.status,
            "ahead": look_ahead(job, spec, now, count),
        }
        return self.answer(found)


def read_number(given: str) -> int:
    """Return the id of a row; zero, which no row has, for anything else."""
    return int(given) if given.isascii() and given.isdigit() and len(given) < 19 else 0
