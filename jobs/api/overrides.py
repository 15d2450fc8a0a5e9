"""Serve overrides: single planned times that are skipped or moved. jobs/services/overrides.py reads the bodies."""

from typing import Any

from django.db.models import QuerySet
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers
from rest_framework.generics import RetrieveAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.idempotency import StoredResponse
from jobs.api.jobs import find_job
from jobs.api.openapi import creation, operation
from jobs.api.requests import BASE, answer_once, read_id
from jobs.api.serializers import BodySerializer, InstantField, LinksField, PlainField
from jobs.api.views import ListView, ResourceView
from jobs.models import Job, Override, Role
from jobs.services import overrides
from jobs.validation.checks import MAX_REASON
from jobs.validation.rows import first_or_missing
from scheduler_project.sdk.ids import run_id

ABOUT_SKIP = "True: it gets no run. Instead of move_to."
ABOUT_MOVE = "Its run goes then, earlier or later."
ABOUT_REASON = "Shown with the run, or with the row that says why there is none."


class NewOverrideSerializer(BodySerializer):
    planned_at = InstantField(help_text="One of the job's planned times.")
    skip = PlainField(
        {"type": "boolean", "enum": [True], "description": ABOUT_SKIP, "example": True}, required=False
    )
    move_to = InstantField(required=False, help_text=ABOUT_MOVE)
    reason = serializers.CharField(required=False, max_length=MAX_REASON, help_text=ABOUT_REASON)


class OverrideSerializer(serializers.Serializer[Override]):
    id = serializers.UUIDField(source="public_id")
    planned_at = InstantField(help_text="One of the job's planned times.")
    skip = serializers.SerializerMethodField(help_text=ABOUT_SKIP)
    move_to = InstantField(source="moved_to", allow_null=True, help_text=ABOUT_MOVE)
    reason = serializers.CharField(max_length=MAX_REASON, help_text=ABOUT_REASON)
    created_by = serializers.CharField()
    created_at = InstantField()
    done_at = InstantField(allow_null=True, help_text="Its run was made, or the row that says why not.")
    run = serializers.SerializerMethodField(help_text="Where it is shown, once it is done.")
    links = LinksField(self=lambda override: f"/jobs/{override.job_id}/times/{override.public_id}")

    def get_skip(self, override: Override) -> bool:
        return override.moved_to is None

    def get_run(self, override: Override) -> str | None:
        return f"{BASE}/runs/{run_id(override.job_id, override.planned_at)}" if override.done_at else None


class OverrideView(ResourceView):
    tag = "overrides"
    write_role = Role.OPERATOR
    queryset = Override.objects.all()
    serializer_class = OverrideSerializer

    @cached_property
    def job(self) -> Job:
        return find_job(self.request, self.kwargs["job_id"])

    def get_queryset(self) -> QuerySet[Override]:
        return self.job.overrides.all()


@extend_schema_view(
    get=operation("list_overrides", "Overrides of planned times, the latest first", errors=(400, 404))
)
class Overrides(OverrideView, ListView):
    newest_first = ("planned_at", "public_id")

    @creation(
        "create_override",
        "Skip or move one planned time",
        takes=NewOverrideSerializer,
        repeated=200,
        errors=(400, 404, 409, 422),
        about="A planned time has one override: a later request changes it, and answers it with 200. The run of a "
        "moved time keeps its planned_at.",
    )
    def post(self, request: Request, **_: Any) -> Response:
        job = self.job

        def act() -> StoredResponse:
            override, new = overrides.set_override(job, request.data)
            return StoredResponse(201 if new else 200, self.get_serializer(override).data)

        return answer_once(request, act)


@extend_schema_view(get=operation("read_override", "One override", errors=(404,)))
class OneOverride(OverrideView, RetrieveAPIView[Override]):
    def get_object(self) -> Override:
        given: str = self.kwargs["override_id"]
        mine = self.get_queryset().filter(public_id=read_id(given))
        return first_or_missing(mine, f"the job has no override {given[:60]}")

    @operation(
        "delete_override",
        "Delete an override",
        status=204,
        errors=(404, 409),
        about="As long as its planned time has not come.",
    )
    def delete(self, request: Request, **_: Any) -> Response:
        overrides.remove_override(self.job, self.get_object().pk)
        return Response(status=204)
