"""Serve redrives of groups of dead letters: start, read and stop them."""

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema_view
from rest_framework import serializers
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.openapi import creation, operation
from jobs.api.requests import read_id
from jobs.api.serializers import (
    BodySerializer,
    InstantField,
    LinksField,
    PlainField,
    ReasonField,
    ReasonSerializer,
)
from jobs.api.views import ResourceViewSet
from jobs.errors import Missing
from jobs.models import Role
from jobs.validation.checks import abbreviate
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import number, text
from runs.api.serializers import RUN_INPUT, RunInputField
from runs.ledger.checks import FINGERPRINT
from runs.models import Redrive, RedriveState
from runs.services import redrives
from runs.services.dead_letters import MAX_COUNTED
from runs.services.redrives import MAX_PACE

DEFAULT_PACE = 60
ABOUT_REASON = "Kept with the decision and in the audit trail."
INPUT = {
    **RUN_INPUT,
    "description": "For the new runs, instead of what the dead ones were given; null or left out: the same.",
}


# Parts of addresses, for OpenAPI.
OF_GROUP = {"fingerprint": text(pattern="^[0-9a-f]{1,32}$")}


class NewRedriveSerializer(BodySerializer):
    reason = ReasonField(ABOUT_REASON)
    per_minute = PlainField(number(minimum=1, maximum=MAX_PACE, default=DEFAULT_PACE), default=DEFAULT_PACE)
    input = PlainField(INPUT, default=None)


class RedriveSerializer(serializers.Serializer[Redrive]):
    id = serializers.UUIDField()
    fingerprint = serializers.CharField()
    per_minute = serializers.IntegerField()
    state = PlainField(text(enum=list(RedriveState.values)))
    made = serializers.IntegerField(help_text="Runs made so far.")
    left = serializers.SerializerMethodField(help_text=f"To come, up to {MAX_COUNTED:,}.")
    refused = serializers.IntegerField(
        help_text="That could not go, such as those of deleted jobs; they stay open."
    )
    last_refusal = serializers.CharField()
    input = RunInputField({"type": "object", "nullable": True})
    reason = serializers.CharField()
    requested_by = serializers.CharField()
    created_at = InstantField()
    ended_at = InstantField(allow_null=True)
    ended_by = serializers.CharField()
    links = LinksField(
        self=lambda redrive: f"/redrives/{redrive.pk}",
        stop=lambda redrive: f"/redrives/{redrive.pk}/stop",
        group=lambda redrive: f"/dead-letters/{redrive.fingerprint}",
    )

    def get_left(self, redrive: Redrive) -> int:
        return redrives.left(redrive)


@extend_schema_view(
    list=operation("list_redrives", "Groups on their way, and those that were, newest first", errors=(400,)),
    retrieve=operation("read_redrive", "How far a redrive has come", errors=(404,)),
)
class Redrives(ListModelMixin, RetrieveModelMixin, ResourceViewSet):
    tag = "dead letters"
    path_schemas = OF_GROUP
    write_role = Role.OPERATOR
    newest_first = ("created_at", "id")
    queryset = Redrive.objects.all()
    serializer_class = RedriveSerializer

    def get_object(self) -> Redrive:
        given: str = self.kwargs["redrive_id"]
        found: QuerySet[Redrive] = self.get_queryset().filter(pk=read_id(given))
        return first_or_missing(found, f"there is no redrive {given[:60]}")

    @operation(
        "stop_redrive",
        "Stop a redrive",
        takes=ReasonSerializer,
        errors=(400, 404, 409),
        about="The runs it has made go on; the rest of the group stays open.",
    )
    def stop(self, request: Request, **_: Any) -> Response:
        reason = ReasonSerializer.read(request)["reason"]
        return self.answer(redrives.stop(self.get_object(), reason))

    @creation(
        "redrive_group",
        "Redrive a group at a pace",
        takes=NewRedriveSerializer,
        errors=(400, 404, 409, 422),
        about="All of it that has died by now, the oldest death first. What dies again is a new dead letter.",
    )
    def start(self, request: Request, fingerprint: str) -> Response:
        given = NewRedriveSerializer.read(request)

        def start() -> Redrive:
            group = tenant_of(request), read_fingerprint(fingerprint)
            return redrives.start(*group, given["per_minute"], given["input"], given["reason"])

        return self.create_once(start)


def read_fingerprint(given: str) -> str:
    """Refuse what is no fingerprint as a group that does not exist."""
    if not FINGERPRINT.fullmatch(given):
        raise no_group(given)
    return given


def no_group(given: str) -> Missing:
    hint = "fingerprints are in the list of dead letters"
    return Missing(f"there is no group {abbreviate(given[:40])}", hint=hint)
