"""Serve decisions about dead runs: redrive or dismiss them."""

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.fields import empty
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.idempotency import StoredResponse
from jobs.api.openapi import operation
from jobs.api.requests import answer_once
from jobs.api.serializers import BodySerializer, PlainField, ReasonField
from jobs.api.views import ResourceViewSet
from jobs.errors import DomainError
from jobs.models import Role
from jobs.validation.checks import MAX_REASON, Json, abbreviate, invalid
from jobs.validation.schema import text
from runs.api.redrives import ABOUT_REASON, INPUT, OF_GROUP, read_fingerprint
from runs.services import dead_letters
from runs.services.dead_letters import MAX_AT_ONCE, MAX_DISMISSED


class RefusedRunSerializer(serializers.Serializer[Any]):
    run = serializers.UUIDField()
    code = serializers.CharField()
    detail = serializers.CharField()
    hint = serializers.CharField()


class RedrivenRunSerializer(serializers.Serializer[Any]):
    run = serializers.UUIDField()
    new_run = serializers.UUIDField()


class RedrivenSerializer(serializers.Serializer[Any]):
    redriven = RedrivenRunSerializer(many=True)
    refused = RefusedRunSerializer(many=True)


class DismissedSerializer(serializers.Serializer[Any]):
    dismissed = serializers.IntegerField()
    more = serializers.BooleanField(help_text="Repeat the request for the rest of the group.")
    refused = RefusedRunSerializer(many=True)


class RunsField(serializers.ListField):
    """Read the ids of dead runs."""

    child = serializers.UUIDField()

    def run_validation(self, data: Any = empty) -> list[UUID]:
        given = None if data is empty else data
        if not isinstance(given, list) or not given:
            raise invalid("runs", f"{abbreviate(given)} is not a list of runs", 'such as {"runs": ["…"]}')
        try:
            return [UUID(value) for value in given]
        except (ValueError, TypeError, AttributeError):
            raise invalid("runs", f"not all of {abbreviate(given)} are ids", "ids are UUIDs") from None


class RequiredReasonField(PlainField):
    """Require the reason why nothing is run again."""

    def __init__(self) -> None:
        super().__init__(text(minLength=1, maxLength=MAX_REASON, pattern=r"\S", example="sent by hand"))

    def run_validation(self, data: Any = empty) -> str:
        hint = f"say why, in at most {MAX_REASON} characters"
        if data is empty:
            raise invalid("reason", "reason is required", hint, "required")
        if not isinstance(data, str) or not data.strip() or len(data) > MAX_REASON:
            raise invalid("reason", f"{abbreviate(data)} is not a reason", hint)
        return data


class RedriveRunsSerializer(BodySerializer):
    reason = ReasonField(ABOUT_REASON)
    runs = RunsField(min_length=1, max_length=MAX_AT_ONCE)
    input = PlainField(INPUT, default=None)


class DismissGroupSerializer(BodySerializer):
    reason = RequiredReasonField()


class DismissRunsSerializer(DismissGroupSerializer):
    runs = RunsField(min_length=1, max_length=MAX_AT_ONCE)


class Decisions(ResourceViewSet):
    tag = "dead letters"
    path_schemas = OF_GROUP
    write_role = Role.OPERATOR
    serializer_class = DismissedSerializer

    @operation(
        "redrive_runs",
        "Redrive dead runs",
        takes=RedriveRunsSerializer,
        gives=RedrivenSerializer,
        errors=(400, 404, 409, 422),
        once=True,
        about="Each becomes a new run of the same version that points to it. A dead run is redriven once: asked "
        "again, the answer names the run that it became.",
    )
    def redrive(self, request: Request) -> Response:
        given = RedriveRunsSerializer.read(request)

        def act() -> StoredResponse:
            tenant, runs = tenant_of(request), given["runs"]
            done = dead_letters.redrive(tenant, runs, given["input"], reason=given["reason"])
            made = [{"run": dead, "new_run": run.pk} for dead, run in done.runs.items()]
            found = {"redriven": made, "refused": refused_runs(done.refused)}
            return StoredResponse(200, RedrivenSerializer(found).data)

        return answer_once(request, act)

    @operation(
        "dismiss_runs",
        "Dismiss dead runs",
        takes=DismissRunsSerializer,
        errors=(400, 404),
        about="Nothing is run for them; they are no longer open.",
    )
    def dismiss(self, request: Request) -> Response:
        given = DismissRunsSerializer.read(request)
        done = dead_letters.dismiss(tenant_of(request), given["runs"], given["reason"])
        refused = refused_runs(done.refused)
        return self.answer({"dismissed": len(done.runs), "more": False, "refused": refused})

    @operation(
        "dismiss_group",
        "Dismiss a group",
        takes=DismissGroupSerializer,
        errors=(400, 404),
        about=f"What has died by now, {MAX_DISMISSED:,} at a time.",
    )
    def dismiss_group(self, request: Request, fingerprint: str) -> Response:
        group, reason = read_fingerprint(fingerprint), DismissGroupSerializer.read(request)["reason"]
        count = dead_letters.dismiss_group(tenant_of(request), group, reason)
        return self.answer({"dismissed": count, "more": count >= MAX_DISMISSED, "refused": []})


def refused_runs(refusals: dict[UUID, DomainError]) -> list[Json]:
    return [
        {"run": run, "code": refusal.code, "detail": refusal.detail, "hint": refusal.hint}
        for run, refusal in refusals.items()
    ]
