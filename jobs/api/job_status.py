"""Serve the buttons of a job: pause, resume and cancel it."""

from typing import Any

from rest_framework.fields import empty
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.editions import ETAG, IF_MATCH, editions_seen
from jobs.api.jobs import find_job, job_response
from jobs.api.openapi import Decorator, operation
from jobs.api.serializers import BodySerializer, GivenInstantField, PlainField, ReasonField, ReasonSerializer
from jobs.models import Role
from jobs.services import status
from jobs.services.missed import missed_json
from jobs.spec.catch_up import CATCH_UP_POLICIES
from jobs.validation.checks import abbreviate, invalid
from jobs.validation.schema import INSTANT, number, obj, ref, text

COMPONENTS = {
    "Missed": obj(
        {
            "count": number("Planned times without a run."),
            "exact": {"type": "boolean", "description": "False: there are more than were counted."},
            "first_at": {**INSTANT, "description": "The first of them."},
            "last_at": {**INSTANT, "description": "The last of them."},
            "policy": text("What decides about them.", enum=list(CATCH_UP_POLICIES)),
            "runs": number("How many runs it makes for them."),
        }
    ),
    "ResumedJob": {
        "allOf": [
            ref("Job"),
            obj({"missed": {"allOf": [ref("Missed")], "nullable": True, "description": "Null: nothing."}}),
        ]
    },
}


class PolicyField(PlainField):
    def run_validation(self, data: Any = empty) -> str | None:
        """Read the policy for this once; null stands for the job's own."""
        if data is empty or data is None or data in CATCH_UP_POLICIES:
            return None if data is empty else data
        hint = f"{', '.join(CATCH_UP_POLICIES)} or null"
        raise invalid("catch_up", f"{abbreviate(data)} is not a catch-up policy", hint)


class PausingSerializer(BodySerializer):
    reason = ReasonField("Kept in the audit trail, and shown with the status.")
    until = GivenInstantField(required=False, allow_null=True, help_text="It goes on by itself then.")


class ResumingSerializer(BodySerializer):
    reason = ReasonField()
    catch_up = PolicyField(
        text("For this once instead of the job's own.", enum=[*CATCH_UP_POLICIES, None], nullable=True),
        required=False,
    )


def job_operation(
    name: str, summary: str, about: str, *, takes: type[BodySerializer] = ReasonSerializer, gives: str = "Job"
) -> Decorator:
    return operation(
        f"{name}_job",
        summary,
        tag="jobs",
        takes=takes,
        gives=ref(gives),
        errors=(400, 404, 409, 412),
        parameters=(IF_MATCH, ETAG),
        about=f"{about} Doing it twice changes nothing the second time.",
    )


class PauseJob(APIView):
    write_role = Role.OPERATOR

    @job_operation(
        "pause",
        "Pause a job",
        "It has no planned times until it is resumed, or `until`.",
        takes=PausingSerializer,
    )
    def post(self, request: Request, job_id: str) -> Response:
        given = PausingSerializer.read(request)
        until = given.get("until", status.UNCHANGED)
        job = find_job(request, job_id)
        job = status.pause_job(job, given["reason"], until, seen=editions_seen(request))
        return job_response(request, job, job.spec)


class ResumeJob(APIView):
    write_role = Role.OPERATOR

    @job_operation(
        "resume",
        "Resume a job",
        "It goes on with the first time after now; its catch-up policy decides about what it missed.",
        takes=ResumingSerializer,
        gives="ResumedJob",
    )
    def post(self, request: Request, job_id: str) -> Response:
        given = ResumingSerializer.read(request)
        job, seen = find_job(request, job_id), editions_seen(request)
        resumed = status.resume_with(job, given["reason"], given["catch_up"], seen=seen)
        missed = missed_json(resumed.missed) if resumed.missed else None
        return job_response(request, resumed.job, resumed.job.spec, missed=missed)


class CancelJob(APIView):
    write_role = Role.OPERATOR

    @job_operation("cancel", "Cancel a job", "For good; its unfinished runs are cancelled.")
    def post(self, request: Request, job_id: str) -> Response:
        job, reason = find_job(request, job_id), ReasonSerializer.read(request)["reason"]
        job = status.cancel_job(job, reason, seen=editions_seen(request))
        return job_response(request, job, job.spec)
