"""Explain why a job does not run."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.jobs import find_job
from jobs.api.openapi import operation
from jobs.api.requests import refuse_unknown_query
from jobs.api.serializers import InstantField, PlainField
from jobs.api.views import ResourceView
from jobs.clock import database_now
from jobs.models import JobStatus
from jobs.services.missed import missed_json, missed_so_far
from jobs.validation.schema import ref, text
from runs.api.serializers import ReasonCodeField, ReasonTextField
from runs.models import MissedSpan
from runs.services.explain import JOB_CODES, Obstacle, obstacles_of_job, waiting_spans


class ObstacleSerializer(serializers.Serializer[Obstacle]):
    code = PlainField(text("Stable; for programs.", enum=[code.value for code in JOB_CODES]))
    detail = serializers.CharField(help_text="For people.")
    link = serializers.SerializerMethodField()

    def get_link(self, found: Obstacle) -> str | None:
        return found.link or None


class SuspendedSpanSerializer(serializers.Serializer[MissedSpan]):
    to = InstantField(source="to_at", help_text="Exclusive.")
    reason = ReasonCodeField()
    reason_text = ReasonTextField()
    count = serializers.IntegerField(allow_null=True, help_text="Null: not counted yet.")

    def get_fields(self) -> dict[str, Any]:
        # `from` is a word of Python.
        return {"from": InstantField(source="from_at"), **super().get_fields()}


class ExplanationSerializer(serializers.Serializer[Any]):
    status = PlainField(text(enum=list(JobStatus.values)))
    next_run_at = InstantField(allow_null=True)
    obstacles = ObstacleSerializer(
        many=True, help_text="All that stands in its way now, the widest first; empty: nothing does."
    )
    missed_so_far = PlainField({"allOf": [ref("Missed")], "nullable": True})
    suspended = SuspendedSpanSerializer(
        many=True,
        help_text="Planned times under a suspension; what becomes of them is decided when it is over.",
    )


class ExplainJob(ResourceView):
    tag = "jobs"
    serializer_class = ExplanationSerializer

    @operation("explain_job", "Why a job does not run", errors=(400, 404))
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ())
        now = database_now()
        missed = missed_so_far(job, job.spec, now)
        return self.answer(
            {
                "status": job.status,
                "next_run_at": job.clock.next_run_at,
                "obstacles": obstacles_of_job(job, now),
                "missed_so_far": missed_json(missed) if missed else None,
                "suspended": waiting_spans(job),
            }
        )
