"""Serve the breaker of a job: read it and close it."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.jobs import find_job
from jobs.api.openapi import operation
from jobs.api.requests import refuse_unknown_query
from jobs.api.serializers import InstantField, PlainField, ReasonSerializer
from jobs.api.views import ResourceViewSet
from jobs.models import Role
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import text
from runs.models import Breaker, BreakerState
from runs.services import breakers


class BreakerSerializer(serializers.Serializer[Breaker]):
    state = PlainField(
        text(
            "closed: runs go; open: they are held; half_open: one of them tries.",
            enum=list(BreakerState.values),
        )
    )
    description = serializers.SerializerMethodField(
        help_text="What holds the job's runs back; empty: nothing does."
    )
    failures = serializers.IntegerField(help_text="In a row, by now.")
    limit = serializers.IntegerField(help_text="After so many it opens.")
    opened_at = InstantField(allow_null=True)
    probe_at = InstantField(allow_null=True, help_text="When one run may try whether it works again.")
    probe = serializers.UUIDField(allow_null=True, help_text="The run that tries.")
    held = serializers.SerializerMethodField(help_text="Runs that wait for it.")

    def get_description(self, breaker: Breaker) -> str:
        return breakers.describe(breaker)

    def get_held(self, breaker: Breaker) -> int:
        return breakers.held_by(breaker.job)


class Breakers(ResourceViewSet):
    tag = "jobs"
    write_role = Role.OPERATOR
    serializer_class = BreakerSerializer

    @operation("read_breaker", "The breaker of a job", errors=(400, 404))
    def retrieve(self, request: Request, job_id: str) -> Response:
        refuse_unknown_query(request, ())
        found = Breaker.objects.filter(job=find_job(request, job_id))
        return self.answer(first_or_missing(found, "the job has no breaker"))

    @operation(
        "close_breaker",
        "Close the breaker of a job",
        takes=ReasonSerializer,
        errors=(400, 404, 409),
        about="For when you know that it works again: the runs it held go at once.",
    )
    def close(self, request: Request, job_id: str) -> Response:
        reason = ReasonSerializer.read(request)["reason"]
        return self.answer(breakers.close_breaker(find_job(request, job_id), reason))
