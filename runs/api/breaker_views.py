"""GET /api/v1/jobs/{id}/breaker, and closing it."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.operations import MAYBE_INSTANT, number, obj, operation, ref, text
from jobs.api.representation import instant
from jobs.api.views import find_job, read_reason, refuse_unknown_query
from jobs.input_checks import Json
from jobs.models import Job, Role
from jobs.refusals import Missing
from runs import breakers
from runs.models import Breaker, BreakerState

COMPONENTS = {
    "Breaker": obj(
        {
            "state": text(
                "closed: runs go; open: they are held; half_open: one of them tries.",
                enum=list(BreakerState.values),
            ),
            "in_words": text("What holds the job's runs back; empty: nothing does."),
            "failures": number("In a row, by now."),
            "limit": number("After so many it opens."),
            "opened_at": MAYBE_INSTANT,
            "probe_at": {**MAYBE_INSTANT, "description": "When one run may try whether it works again."},
            "probe": text("The run that tries.", format="uuid", nullable=True),
            "held": number("Runs that wait for it."),
        }
    )
}


class OneBreaker(APIView):
    @operation("read_breaker", "The breaker of a job", tag="jobs", gives=ref("Breaker"), errors=(400, 404))
    def get(self, request: Request, job_id: str) -> Response:
        refuse_unknown_query(request, ())
        job = find_job(request, job_id)
        breaker = breakers.breaker_of(job)
        if breaker is None:
            raise Missing("the job has no breaker")
        return Response(breaker_json(job, breaker))


class CloseBreaker(APIView):
    write_role = Role.OPERATOR

    @operation(
        "close_breaker",
        "Close the breaker of a job",
        tag="jobs",
        takes=ref("Reason"),
        gives=ref("Breaker"),
        errors=(400, 404, 409),
        about="For when you know that it works again: the runs it held go at once.",
    )
    def post(self, request: Request, job_id: str) -> Response:
        reason = read_reason(request.data)
        job = find_job(request, job_id)
        return Response(breaker_json(job, breakers.close_breaker(job, reason)))


def breaker_json(job: Job, breaker: Breaker) -> Json:
    return {
        "state": breaker.state,
        "in_words": breakers.in_words(breaker),
        "failures": breaker.failures,
        "limit": breaker.limit,
        "opened_at": instant(breaker.opened_at),
        "probe_at": instant(breaker.probe_at),
        "probe": str(breaker.probe) if breaker.probe else None,
        "held": breakers.held_by(job),
    }
