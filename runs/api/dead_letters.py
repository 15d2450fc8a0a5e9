"""Serve dead runs that wait for a decision, in groups of one error."""

from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.authentication import tenant_of
from jobs.api.filters import NamedFilterSet, QueryFilter, choice, read_uuid
from jobs.api.openapi import operation, query
from jobs.api.requests import refuse_unknown_query
from jobs.api.serializers import InstantField, LinksField, PlainField
from jobs.api.views import ListView, ResourceView
from jobs.models import Job
from jobs.validation.checks import Json
from jobs.validation.schema import obj, text
from runs.api.redrives import OF_GROUP, RedriveSerializer, no_group, read_fingerprint
from runs.api.serializers import ErrorField
from runs.models import DeadLetter, DeadLetterDecision, ErrorClass, Redrive, RedriveState
from runs.services import dead_letters
from runs.services.dead_letters import MAX_COUNTED, MAX_GROUPS, Group

DECISIONS = {decision.name.lower(): decision for decision in DeadLetterDecision}
OPEN = Q(decision=DeadLetterDecision.OPEN)
ID = text(format="uuid")
ERROR = obj(
    {"class": text(enum=list(ErrorClass.values)), "type": text(), "line": text("Of the latest death.")},
    title="DeathError",
)


class DeadGroupSerializer(serializers.Serializer[Group]):
    fingerprint = serializers.CharField(help_text="The same for the same mistake.")
    count = serializers.IntegerField(
        source="size", help_text=f"Of its dead runs that wait for a decision, up to {MAX_COUNTED:,}."
    )
    more = serializers.BooleanField(help_text="There are more than were counted.")
    first_seen_at = InstantField(source="first_at")
    last_seen_at = InstantField(source="last_at")
    error = ErrorField(ERROR)
    jobs = serializers.SerializerMethodField(help_text="Of the latest deaths.")
    redrive = serializers.SerializerMethodField(help_text="On its way now.")
    links = LinksField(
        self=lambda group: f"/dead-letters/{group.fingerprint}",
        redrive=lambda group: f"/dead-letters/{group.fingerprint}/redrive",
        dismiss=lambda group: f"/dead-letters/{group.fingerprint}/dismiss",
    )

    @extend_schema_field({"type": "array", "items": obj({"id": ID, "name": text()}, title="NamedJob")})
    def get_jobs(self, group: Group) -> list[Json]:
        jobs: dict[UUID, Job] = self.context["jobs"]
        named = sorted((jobs[job] for job in group.jobs if job in jobs), key=lambda job: job.name)
        return [{"id": str(job.pk), "name": job.name} for job in named]

    @extend_schema_field(RedriveSerializer(allow_null=True))
    def get_redrive(self, group: Group) -> Json | None:
        redrive = self.context["redrives"].get(group.fingerprint)
        return RedriveSerializer(redrive, context=self.context).data if redrive else None


class DeadGroupsSerializer(serializers.Serializer[Any]):
    results = DeadGroupSerializer(many=True)
    more = serializers.BooleanField(help_text=f"There are more groups than {MAX_GROUPS}.")


class DeadLetterSerializer(serializers.Serializer[DeadLetter]):
    run = serializers.UUIDField(source="run_id", help_text="The dead run.")
    job = serializers.UUIDField(source="job_id")
    job_name = serializers.CharField(source="job.name", read_only=True)
    fingerprint = serializers.CharField()
    died_at = InstantField()
    error = ErrorField(ERROR)
    decision = PlainField(text("Empty: open.", enum=list(DeadLetterDecision.values)))
    decided_at = InstantField(allow_null=True)
    decided_by = serializers.CharField()
    reason = serializers.CharField()
    redriven_as = serializers.UUIDField(allow_null=True, help_text="The run that it was redriven as.")
    links = LinksField(
        ("redriven_as",),
        run=lambda letter: f"/runs/{letter.run_id}",
        redriven_as=lambda letter: letter.redriven_as and f"/runs/{letter.redriven_as}",
    )


class DeadGroups(ResourceView):
    tag = "dead letters"
    serializer_class = DeadGroupsSerializer

    @operation(
        "list_dead_letters",
        "Dead runs that wait for a decision, by error",
        errors=(400,),
        parameters=(query("job", "Only groups with dead runs of this job.", OpenApiTypes.UUID),),
        about="The latest death first. Decide by group or by run: redrive it, or dismiss it for a reason.",
    )
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("job",))
        tenant = tenant_of(request)
        found = dead_letters.groups([tenant.pk])
        more = len(found) >= MAX_GROUPS
        if (given := request.query_params.get("job")) is not None:
            wanted = dead_letters.fingerprints_of(tenant, read_uuid(given, "job"))
            found = [group for group in found if group.fingerprint in wanted]
        working = Redrive.objects.filter(tenant=tenant, state=RedriveState.WORKING)
        redrives = {redrive.fingerprint: redrive for redrive in working}
        context = {"request": request, "jobs": dead_letters.jobs_of(found), "redrives": redrives}
        groups = {"results": found, "more": more}
        return Response(DeadGroupsSerializer(groups, context=context).data)


class DeadLetterFilters(NamedFilterSet):
    decision = choice("Open unless given.", DECISIONS, "is not a decision", method="decided")
    job = QueryFilter("Of this job alone.", read=read_uuid, schema=ID, field_name="job_id")

    def decided(self, letters: QuerySet[DeadLetter], _: str, decision: str) -> QuerySet[DeadLetter]:
        return letters.filter(decision=DECISIONS[decision])


@extend_schema_view(
    get=operation(
        "list_dead_letters_of_group", "The dead runs of a group, the latest first", errors=(400, 404)
    )
)
class DeadGroup(ListView):
    tag = "dead letters"
    path_schemas = OF_GROUP
    queryset = DeadLetter.objects.prefetch_related("job")
    serializer_class = DeadLetterSerializer
    filterset_class = DeadLetterFilters
    newest_first = ("died_at", "run_id")

    def get_queryset(self) -> QuerySet[DeadLetter]:
        group = read_fingerprint(self.kwargs["fingerprint"])
        return super().get_queryset().filter(fingerprint=group)

    def filter_queryset(self, letters: QuerySet[Any]) -> QuerySet[Any]:
        filtered = super().filter_queryset(letters)
        asked = "decision" in self.request.query_params
        return filtered if asked else filtered.filter(OPEN)

    def paginate_queryset(self, letters: Any) -> Any:
        page = super().paginate_queryset(letters)
        # Open and decided ones have an index each.
        if not page and not any(self.get_queryset().filter(state).exists() for state in (OPEN, ~OPEN)):
            raise no_group(self.kwargs["fingerprint"])
        return page
