"""Serve the completion of runs by their targets. runs/ledger/callbacks.py reads the body."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.access import request_limits
from jobs.api.openapi import operation
from jobs.api.views import ResourceView
from jobs.validation.schema import obj, ref, text
from runs.ledger import callbacks
from scheduler_project.sdk import outcomes

SUCCESS = obj(
    {
        "outcome": text(enum=["succeeded"]),
        "result": {"nullable": True, "description": "Any JSON of at most 10,000 bytes."},
    },
    required=("outcome",),
    title="CompletedSuccess",
)
STATED_ERROR = obj(
    {
        "class": text(enum=list(callbacks.CLASSES), default=outcomes.TRANSIENT),
        "type": text(maxLength=200),
        "message": text(maxLength=callbacks.MAX_ERROR_LENGTH),
    },
    title="StatedError",
)
FAILURE = obj(
    {
        "outcome": text(enum=["failed"]),
        "error": {
            "oneOf": [text(maxLength=callbacks.MAX_ERROR_LENGTH), STATED_ERROR],
            "nullable": True,
            "description": "The class and the type are what the job's retry policy goes by.",
        },
        "retry_after": {
            "type": "number",
            "nullable": True,
            "minimum": 0,
            "maximum": callbacks.MAX_RETRY_AFTER,
            "description": "Seconds.",
        },
    },
    required=("outcome",),
    title="CompletedFailure",
)
COMPONENTS = {"Completion": {"oneOf": [SUCCESS, FAILURE]}}


class CompletedSerializer(serializers.Serializer[Any]):
    run = serializers.UUIDField()
    attempt = serializers.IntegerField()
    state = serializers.CharField(help_text="What the run became by it.")


class CompleteRun(ResourceView):
    tag = "runs"
    serializer_class = CompletedSerializer
    # The target of a run has no key of ours: the token of its attempt is all it needs.
    authentication_classes = ()
    permission_classes = ()

    @extend_schema(auth=[{"callback": []}])  # type: ignore[list-item] # takes what OpenAPI does
    @operation(
        "complete_run",
        "Report the outcome of a run",
        takes=ref("Completion"),
        errors=(400, 409),
        about="For the target of a job with `callback` that has answered 202. It takes no key but the token of the "
        "call, `Authorization: Bearer <Beatkeeper-Callback-Token>`, which is good for that one attempt. Told again "
        "in the same words it is answered the same. A token that is not awaited is answered by 401, and so is a "
        "run that does not exist.",
    )
    def post(self, request: Request, run_id: str) -> Response:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            run = UUID(run_id)
        except ValueError:
            run = UUID(int=0)
        token = token.strip() if scheme.lower() == "bearer" else ""
        try:
            return Response(callbacks.complete(run, token, request.data))
        except callbacks.Unawaited:
            request_limits.count_wrong_credentials()
            raise
