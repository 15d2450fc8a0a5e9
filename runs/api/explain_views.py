"""GET /api/v1/jobs/{id}/explain"""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs.api.operations import MAYBE_INSTANT, number, obj, operation, ref, text
from jobs.api.representation import instant
from jobs.api.views import find_job, refuse_unknown_query
from jobs.database_clock import database_now
from jobs.input_checks import Json
from jobs.missed import missed_so_far
from jobs.models import JobStatus
from runs.explain import Obstacle, obstacles, waiting_spans
from runs.models import MissedSpan

COMPONENTS = {
    "Explanation": obj(
        {
            "status": text(enum=list(JobStatus.values)),
            "next_run_at": MAYBE_INSTANT,
            "obstacles": {
                "type": "array",
                "description": "All that stands in its way now, the widest first; empty: nothing does.",
                "items": obj(
                    {
                        "code": text(
                            "Stable; for programs.",
                            enum=[
                                "stop",
                                "lane",
                                "target",
                                "breaker",
                                "status",
                                "schedule",
                                "blocked",
                                "delayed",
                            ],
                        ),
                        "detail": text("For people."),
                        "link": text(nullable=True),
                    }
                ),
            },
            "missed_so_far": {"allOf": [ref("Missed")], "nullable": True},
            "suspended": {
                "type": "array",
                "description": "Planned times under a stop; what becomes of them is decided when it is over.",
                "items": obj(
                    {
                        "from": text(format="date-time"),
                        "to": text("Exclusive.", format="date-time"),
                        "reason": text(),
                        "count": number("Null: not counted yet.", nullable=True),
                    }
                ),
            },
        }
    )
}


class ExplainJob(APIView):
    @operation(
        "explain_job",
        "Why a job does not run",
        tag="jobs",
        gives=ref("Explanation"),
        errors=(400, 404),
    )
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ())
        now = database_now()
        missed = missed_so_far(job, job.spec, now)
        return Response(
            {
                "status": job.status,
                "next_run_at": instant(job.clock.next_run_at),
                "obstacles": [obstacle_json(one) for one in obstacles(job, now)],
                "missed_so_far": missed.as_json() if missed else None,
                "suspended": [span_json(span) for span in waiting_spans(job)],
            }
        )


def obstacle_json(found: Obstacle) -> Json:
    return {"code": found.code, "detail": found.detail, "link": found.link or None}


def span_json(span: MissedSpan) -> Json:
    return {
        "from": instant(span.from_at),
        "to": instant(span.to_at),
        "reason": span.reason,
        "count": span.count,
    }
