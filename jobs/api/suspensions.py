"""Serve pauses and blackouts: a tenant's own, and those of the platform to look at.

Both kinds have the same views, bound to their kind in `urls`. jobs/suspensions/service.py reads the bodies.
"""

from datetime import datetime
from typing import Any, ClassVar

from django.urls import URLPattern, path
from django.utils.functional import cached_property
from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.generics import RetrieveAPIView
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.authentication import tenant_of
from jobs.api.filters import NamedFilterSet, choice
from jobs.api.openapi import Decorator, creation, operation
from jobs.api.requests import read_id
from jobs.api.serializers import BodySerializer, InstantField, LinksField, PlainField, ReasonSerializer
from jobs.api.views import ListView, ResourceView
from jobs.clock import database_now
from jobs.models import Role, Suspension, SuspensionKind, SuspensionState
from jobs.models.suspensions import SuspensionQuerySet
from jobs.spec import tags
from jobs.suspensions import service as suspensions
from jobs.suspensions.lookup import NO_JOB, jobs_concerned
from jobs.suspensions.reading import EFFECT_HINTS, EFFECTS
from jobs.validation.checks import MAX_REASON
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import text

PLATFORM = "the platform"
ABOUT_POOL = "Your jobs in this pool."
ABOUT_EVERYTHING = "All of your jobs; instead of job, tag and pool."
ABOUT_JOB = "One of your jobs, by its id."


class OfKind(serializers.Serializer[Any]):
    kind: ClassVar[SuspensionKind]

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        fields = super().get_fields()
        effects = EFFECTS[self.kind]
        meanings = "; ".join(f"{effect.value}: {EFFECT_HINTS[effect]}" for effect in effects)
        default = {} if isinstance(self, SuspensionSerializer) else {"default": effects[0].value}
        schema = text(f"{meanings}.", enum=[effect.value for effect in effects], **default)
        fields["effect"] = PlainField(schema, required=not default)
        ends = fields["ends_at"]
        fields["ends_at"] = InstantField(
            allow_null=self.kind == SuspensionKind.PAUSE,
            required=ends.required and self.kind == SuspensionKind.BLACKOUT,
        )
        return fields


class NewSuspensionSerializer(BodySerializer, OfKind):
    job = serializers.UUIDField(required=False, allow_null=True, help_text=ABOUT_JOB)
    tag = PlainField({**tags.TAG, "nullable": True}, required=False)
    pool = serializers.CharField(required=False, allow_null=True, help_text=ABOUT_POOL)
    everything = PlainField(
        {"type": "boolean", "enum": [True], "description": ABOUT_EVERYTHING}, required=False
    )
    effect = serializers.CharField(required=False)
    reason = serializers.CharField(
        required=False, max_length=MAX_REASON, help_text="Shown wherever it suspends something."
    )
    begins_at = InstantField(required=False, allow_null=True, help_text="Now, unless it is given.")
    ends_at = InstantField()


class SuspensionChangesSerializer(NewSuspensionSerializer):
    """Before it begins anything; from then on `ends_at` and `reason`."""

    ends_at = InstantField(required=False)


# A tenant reads what a suspension of the platform does, not which person made it.
class SuspensionSerializer(OfKind):
    id = serializers.UUIDField(source="public_id")
    job = serializers.UUIDField(source="job_id", allow_null=True, help_text=ABOUT_JOB)
    tag = serializers.CharField(read_only=True, allow_null=True, help_text=tags.ABOUT)
    pool = serializers.CharField(source="pool.slug", allow_null=True, help_text=ABOUT_POOL)
    everything = serializers.SerializerMethodField(help_text=ABOUT_EVERYTHING)
    concerns = serializers.CharField(source="describe", read_only=True, help_text="In words.")
    jobs_concerned = serializers.SerializerMethodField(
        help_text="Of your jobs as they are; null in a list. Finished and cancelled ones do not count."
    )
    warnings = serializers.SerializerMethodField(
        help_text="In the answer to one: what was accepted, and will not do much as things are."
    )
    effect = serializers.CharField()
    reason = serializers.CharField(max_length=MAX_REASON, help_text="Shown wherever it suspends something.")
    state = serializers.SerializerMethodField()
    begins_at = InstantField(help_text="Now, unless it is given.")
    ends_at = InstantField()
    lifted_at = InstantField(allow_null=True)
    lifted_by = serializers.SerializerMethodField()
    created_by = serializers.SerializerMethodField()
    created_at = InstantField()
    own = serializers.SerializerMethodField(help_text="False: of the platform, to look at only.")
    links = LinksField(
        ("job",),
        self=lambda suspension: f"/{suspension.kind}s/{suspension.public_id}",
        job=lambda suspension: suspension.job_id and f"/jobs/{suspension.job_id}",
    )

    @cached_property
    def counted(self) -> int | None:
        # A list would cost a count for each of its rows.
        suspension: Any = self.instance
        return None if self.parent else jobs_concerned(suspension, tenant_of(self.context["request"]))

    def get_jobs_concerned(self, _: Suspension) -> int | None:
        return self.counted

    def get_warnings(self, _: Suspension) -> list[str]:
        return [NO_JOB] if self.counted == 0 else []

    def get_everything(self, suspension: Suspension) -> bool:
        return not suspension.names_jobs

    @extend_schema_field(text(enum=list(SuspensionState.values)))
    def get_state(self, suspension: Suspension) -> str:
        return suspension.state(self.context["view"].now)

    def get_lifted_by(self, suspension: Suspension) -> str:
        own = suspension.tenant_id is not None
        return suspension.lifted_by if own or not suspension.lifted_at else PLATFORM

    def get_created_by(self, suspension: Suspension) -> str:
        return suspension.created_by if suspension.tenant_id is not None else PLATFORM

    def get_own(self, suspension: Suspension) -> bool:
        return suspension.tenant_id is not None


class SuspensionView(ResourceView):
    write_role = Role.OPERATOR
    queryset = Suspension.objects.all()
    kind: ClassVar[SuspensionKind]

    @cached_property
    def now(self) -> datetime:
        return database_now()

    def get_queryset(self) -> SuspensionQuerySet:
        return Suspension.objects.seen_by(tenant_of(self.request)).filter(kind=self.kind)

    def get_object(self) -> Suspension:
        given: str = self.kwargs["suspension_id"]
        found = self.get_queryset().filter(public_id=read_id(given))
        return first_or_missing(found, f"there is no {self.kind} {given[:60]}")

    def get_own(self) -> Suspension:
        suspension = self.get_object()
        if suspension.tenant_id is None:
            raise PermissionDenied(f"this {self.kind} is of the platform: only its operators change it")
        return suspension


class SuspensionFilters(NamedFilterSet):
    state = choice("The state.", SuspensionState.values, "is not a state", method="in_state")

    def in_state(self, found: SuspensionQuerySet, _: str, state: str) -> SuspensionQuerySet:
        return found.in_state(state, database_now())


class Suspensions(SuspensionView, ListView):
    newest_first = ("created_at", "public_id")
    filterset_class = SuspensionFilters

    def post(self, request: Request) -> Response:
        tenant = tenant_of(request)
        return self.create_once(lambda: suspensions.create_suspension(self.kind, request.data, tenant=tenant))


class OneSuspension(SuspensionView, RetrieveAPIView[Suspension]):
    def patch(self, request: Request, **_: Any) -> Response:
        return self.answer(suspensions.edit_suspension(self.get_own(), request.data))

    def delete(self, request: Request, **_: Any) -> Response:
        suspensions.delete_suspension(self.get_own())
        return Response(status=204)


class LiftSuspension(SuspensionView):
    def post(self, request: Request, **_: Any) -> Response:
        suspension, reason = self.get_own(), ReasonSerializer.read(request)["reason"]
        return self.answer(suspensions.lift_suspension(suspension, reason))


def urls(kind: SuspensionKind, create_summary: str, create_about: str) -> list[URLPattern]:
    """Bind the views to a kind, and describe them in its words."""
    name = kind.capitalize()

    def own(base: type, prefix: str = "", suffix: str = "") -> Any:
        attributes = {"kind": kind, "__doc__": base.__doc__}
        return type(f"{prefix}{name}{suffix}Serializer", (base,), attributes)

    answer = own(SuspensionSerializer)

    def view(base: type[APIView], **operations: Decorator) -> Any:
        bound: Any = type(
            f"{name}{base.__name__}", (base,), {"kind": kind, "tag": f"{kind}s", "serializer_class": answer}
        )
        return extend_schema_view(**operations)(bound).as_view()

    every = view(
        Suspensions,
        get=operation(
            f"list_{kind}s",
            f"{name}s of your jobs, newest first",
            errors=(400,),
            about="Your own, and those of the platform that concern your jobs.",
        ),
        post=creation(
            f"create_{kind}",
            create_summary,
            takes=own(NewSuspensionSerializer, prefix="New"),
            errors=(400, 409, 422),
            about=f"{create_about} It concerns every job of yours that fits all that it names. Several may overlap.",
        ),
    )
    one = view(
        OneSuspension,
        get=operation(f"read_{kind}", f"One {kind}", errors=(404,)),
        patch=operation(
            f"edit_{kind}",
            f"Change a {kind}",
            takes=own(SuspensionChangesSerializer, suffix="Changes"),
            errors=(400, 404, 409),
        ),
        delete=operation(
            f"delete_{kind}",
            f"Delete a {kind} that has not begun",
            status=204,
            errors=(404, 409),
            about="One that has begun is lifted instead.",
        ),
    )
    lift = view(
        LiftSuspension,
        post=operation(
            f"lift_{kind}",
            f"End a {kind} now",
            takes=ReasonSerializer,
            errors=(400, 404),
            about="Doing it twice changes nothing the second time.",
        ),
    )
    return [
        path(f"{kind}s", every),
        path(f"{kind}s/<str:suspension_id>", one),
        path(f"{kind}s/<str:suspension_id>/lift", lift),
    ]
