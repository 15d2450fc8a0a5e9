"""Serve the attempts of a run and their logs."""

import json
from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.api.openapi import operation, problems, query
from jobs.api.requests import refuse_unknown_query
from jobs.api.serializers import InstantField, LinksField, PlainField
from jobs.api.views import ResourceView
from jobs.errors import Missing
from jobs.validation.checks import abbreviate, invalid
from jobs.validation.schema import number, text
from runs import history
from runs import logs as run_logs
from runs.api.runs import find_run
from runs.api.serializers import ERROR, EndErrorField
from runs.models import Attempt, AttemptOutcome, Run
from runs.states import LiveState


class AttemptSerializer(serializers.Serializer[Attempt]):
    number = serializers.IntegerField()
    state = PlainField(
        text(enum=[LiveState.RUNNING.value, LiveState.WAITING_CALLBACK.value, *AttemptOutcome.values]),
        source="outcome",
    )
    next_state = serializers.CharField(allow_null=True, help_text="What the run became by it.")
    worker = serializers.SerializerMethodField()
    started_at = InstantField()
    finished_at = InstantField(allow_null=True)
    exit_code = serializers.IntegerField(allow_null=True)
    error = EndErrorField(ERROR)
    links = LinksField(log=lambda attempt: f"/runs/{attempt.run_id}/log?attempt={attempt.number}")

    def get_worker(self, attempt: Attempt) -> str:
        return attempt.worker_name or str(attempt.worker)


class AttemptListSerializer(serializers.Serializer[Any]):
    results = AttemptSerializer(many=True)


class LogLineSerializer(serializers.Serializer[Any]):
    at = InstantField()
    stream = serializers.CharField()
    level = serializers.CharField()
    text = serializers.CharField()


class Attempts(ResourceView):
    tag = "runs"
    serializer_class = AttemptListSerializer

    @operation("list_attempts", "Its attempts, oldest first", errors=(404,))
    def get(self, request: Request, run_id: str) -> Response:
        return self.answer({"results": history.attempts_with_open(find_run(request, run_id))})


class RunLog(ResourceView):
    @extend_schema(
        operation_id="read_log",
        summary="What it printed",
        tags=["runs"],
        parameters=[
            query(
                "attempt",
                "The number of the attempt; the latest unless given.",
                number(minimum=0, maximum=999_999_999),
            ),
            OpenApiParameter("format", str, enum=["text", "jsonl"], default="text"),
        ],
        responses={
            (200, "text/plain"): OpenApiTypes.STR,
            (200, "application/x-ndjson"): LogLineSerializer,
            **problems(400, 404),
        },
    )
    def get(self, request: Request, run_id: str) -> HttpResponse:
        refuse_unknown_query(request, ("attempt", "format"))
        run = find_run(request, run_id)
        form = request.query_params.get("format", "text")
        if form not in ("text", "jsonl"):
            raise invalid("format", f"{abbreviate(form)} is not a format", "text or jsonl")
        lines = run_logs.lines(_read_log(run, request.query_params.get("attempt")))
        if form == "jsonl":
            body = "".join(json.dumps(line._asdict(), ensure_ascii=False) + "\n" for line in lines)
            return HttpResponse(body, content_type="application/x-ndjson")
        body = "".join(line.text + "\n" for line in lines)
        return HttpResponse(body, content_type="text/plain; charset=utf-8")


def _read_log(run: Run, attempt: str | None) -> bytes:
    if attempt is not None and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 10):
        raise invalid("attempt", f"{abbreviate(attempt)} is not the number of an attempt", "1, 2, 3, …")
    try:
        return run_logs.read_log(run, int(attempt) if attempt else None)
    except run_logs.NoSuchAttempt:
        raise Missing(f"the run has no attempt {attempt}") from None
    except run_logs.LogMissing:
        raise Missing("the log is no longer in the store") from None
