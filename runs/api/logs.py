"""Serve the attempts of a run and their logs."""

import json
from collections.abc import Sequence
from typing import Any

from django.http import HttpResponse, QueryDict
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

FORMATS = ("text", "jsonl")
STYLES = ("keep", "strip")
PARAMETERS = ("attempt", "format", "first", "lines", "tail", "level", "ansi", "download")
MAX_NUMBER = 999_999_999


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
    stream = serializers.CharField(help_text="stdout, stderr, log, http, or beatkeeper about the log itself.")
    level = serializers.CharField(help_text="Of a log record; else empty.")
    text = serializers.CharField()
    number = serializers.IntegerField(help_text="Of the line in its attempt, from 1.")
    logger = serializers.CharField(help_text="Of a log record; else empty.")
    extra = serializers.DictField(allow_null=True, help_text="What the log record was given as `extra`.")


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
                number(minimum=0, maximum=MAX_NUMBER),
            ),
            OpenApiParameter("format", str, enum=list(FORMATS), default="text"),
            query(
                "first",
                "The number of the first line.",
                number(minimum=1, maximum=MAX_NUMBER),
            ),
            query("lines", "At most so many lines.", number(minimum=1, maximum=MAX_NUMBER)),
            query("tail", "Of these the last so many.", number(minimum=1, maximum=MAX_NUMBER)),
            OpenApiParameter(
                "level",
                str,
                enum=list(run_logs.LEVELS),
                description="Log records of this level or a higher one.",
            ),
            OpenApiParameter(
                "ansi", str, enum=list(STYLES), default="keep", description="`strip` leaves out colours."
            ),
            OpenApiParameter("download", str, enum=["1"], description="As a file."),
        ],
        responses={
            (200, "text/plain"): OpenApiTypes.STR,
            (200, "application/x-ndjson"): LogLineSerializer,
            **problems(400, 404),
        },
    )
    def get(self, request: Request, run_id: str) -> HttpResponse:
        refuse_unknown_query(request, PARAMETERS)
        run = find_run(request, run_id)
        given = request.query_params
        form = _choice(given, "format", FORMATS)
        plain = _choice(given, "ansi", STYLES) == "strip"
        download = _choice(given, "download", ("", "1"))
        window = _window(given)
        lines = window.of(run_logs.lines(_read_log(run, given.get("attempt"))))
        if plain:
            lines = (line._replace(text=run_logs.without_style(line.text)) for line in lines)
        if form == "jsonl":
            body = "".join(json.dumps(line._asdict(), ensure_ascii=False) + "\n" for line in lines)
            response = HttpResponse(body, content_type="application/x-ndjson")
        else:
            body = "".join(line.with_logger + "\n" for line in lines)
            response = HttpResponse(body, content_type="text/plain; charset=utf-8")
        if download:
            suffix = "jsonl" if form == "jsonl" else "log"
            response["Content-Disposition"] = f'attachment; filename="{run.pk}.{suffix}"'
        return response


def _window(given: QueryDict) -> run_logs.Window:
    return run_logs.Window(
        first=_count(given, "first") or 1,
        most=_count(given, "lines"),
        tail=_count(given, "tail"),
        level=_choice(given, "level", ("", *run_logs.LEVELS)),
    )


def _count(given: QueryDict, name: str) -> int | None:
    if (value := given.get(name)) is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise invalid(name, f"{abbreviate(value)} is not such a number", f"1 to {MAX_NUMBER}")
    return int(value)


def _choice(given: QueryDict, name: str, allowed: Sequence[str]) -> str:
    value = given.get(name, allowed[0])
    if value not in allowed:
        hint = " or ".join(choice for choice in allowed if choice)
        raise invalid(name, f"{abbreviate(value)} is none of its values", hint)
    return value


def _read_log(run: Run, attempt: str | None) -> bytes:
    if attempt is not None and not (attempt.isascii() and attempt.isdigit() and len(attempt) < 10):
        raise invalid("attempt", f"{abbreviate(attempt)} is not the number of an attempt", "1, 2, 3, …")
    try:
        return run_logs.read_log(run, int(attempt) if attempt else None)
    except run_logs.NoSuchAttempt:
        raise Missing(f"the run has no attempt {attempt}") from None
    except run_logs.LogMissing:
        raise Missing("the log is no longer in the store") from None
