"""Explain why a job or a run does not run."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
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
from jobs.services.occurrences import next_run_of
from jobs.services.overrides import open_overrides
from jobs.validation.schema import ref, text
from runs.api.runs import find_run
from runs.api.serializers import ReasonCodeField, ReasonTextField, RunStateSerializer
from runs.models import MissedSpan, Run
from runs.services.explain import (
    JOB_CODES,
    Obstacle,
    ObstacleCode,
    obstacles_of_job,
    obstacles_of_run,
    waiting_spans,
)


class ObstacleSerializer(serializers.Serializer[Obstacle]):
    code = PlainField(text("Stable; for programs.", enum=[code.value for code in JOB_CODES]))
    detail = serializers.CharField(help_text="For people.")
    link = serializers.SerializerMethodField()

    def get_link(self, found: Obstacle) -> str | None:
        return found.link or None


class RunObstacleSerializer(ObstacleSerializer):
    code = PlainField(
        text(
            "Stable; for programs. The state of the run stands for its own reason.", enum=ObstacleCode.values
        )
    )


class SuspendedSpanSerializer(serializers.Serializer[MissedSpan]):
    begins_at = InstantField()
    ends_at = InstantField(help_text="Exclusive.")
    reason = ReasonCodeField()
    reason_text = ReasonTextField()
    count = serializers.IntegerField(allow_null=True, help_text="Null: not counted yet.")


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
                "next_run_at": next_run_of(job, job.spec, open_overrides(job)),
                "obstacles": obstacles_of_job(job, now),
                "missed_so_far": missed_json(missed) if missed else None,
                "suspended": waiting_spans(job),
            }
        )


class RunExplanationSerializer(RunStateSerializer):
    obstacles = serializers.SerializerMethodField(
        help_text="All that keeps it from running now, its own reason first; empty: it has begun, or is over."
    )

    @extend_schema_field(RunObstacleSerializer(many=True))
    def get_obstacles(self, run: Run) -> Any:
        found: Any = obstacles_of_run(run, database_now())
        return RunObstacleSerializer(found, many=True).data


class ExplainRun(ResourceView):
    tag = "runs"
    serializer_class = RunExplanationSerializer

    @operation("explain_run", "Why a run waits", errors=(400, 404))
    def get(self, request: Request, run_id: str) -> Response:
        run = find_run(request, run_id)
        refuse_unknown_query(request, ())
        return self.answer(run)
