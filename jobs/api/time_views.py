"""Single planned times of a job over HTTP, and what stands ahead of it."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import planned_changes
from jobs.api import time_schema as schema
from jobs.api.representation import BASE, instant, words
from jobs.api.views import answer_once, find_job, paged, read_count, refuse_unknown_query
from jobs.database_clock import database_now
from jobs.forecast import Ahead, look_ahead
from jobs.idempotency import Answer
from jobs.input_checks import Json
from jobs.models import Job, PlannedChange, Role
from jobs.planned_times import schedule_of
from jobs.refusals import Missing
from jobs.schedules import upcoming
from jobs.stop_rules import StopRow
from scheduler_project.sdk.ids import run_id


class Times(APIView):
    write_role = Role.OPERATOR
    newest_first = ("planned_at", "id")

    @schema.list_times
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ("limit", "cursor"))
        changes = job.planned_changes.all()
        return paged(self, request, changes, lambda page: [change_json(job, change) for change in page])

    @schema.change_time
    def post(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)

        def act() -> Answer:
            return Answer(201, change_json(job, planned_changes.change_time(job, request.data)))

        return answer_once(request, act)


class OneTime(APIView):
    write_role = Role.OPERATOR

    @schema.read_time
    def get(self, request: Request, job_id: str, change_id: str) -> Response:
        job = find_job(request, job_id)
        change = job.planned_changes.filter(pk=read_number(change_id)).first()
        if change is None:
            raise Missing(f"the job has no changed time {change_id[:60]}")
        return Response(change_json(job, change))

    @schema.restore_time
    def delete(self, request: Request, job_id: str, change_id: str) -> Response:
        planned_changes.restore_time(find_job(request, job_id), read_number(change_id))
        return Response(status=204)


def read_number(text: str) -> int:
    """Zero, which nothing has, for what is no number of a row."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def change_json(job: Job, change: PlannedChange) -> Json:
    return {
        "id": change.pk,
        "planned_at": instant(change.planned_at),
        "skip": change.moved_to is None,
        "move_to": instant(change.moved_to),
        "note": change.note,
        "made_by": change.made_by,
        "created_at": instant(change.created_at),
        "done_at": instant(change.done_at),
        "run": f"{BASE}/runs/{run_id(job.pk, change.planned_at)}" if change.done_at else None,
        "links": {"self": f"{BASE}/jobs/{job.pk}/times/{change.pk}"},
    }


class JobPreview(APIView):
    @schema.preview_job
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ("n",))
        number = read_count(request.query_params.get("n", "10"))
        spec, now = job.spec, database_now()
        ahead = look_ahead(job, spec, now, number)
        return Response(
            {
                "schedule_in_words": words(spec.schedule, str(job.pk)),
                "now": instant(now),
                "times": [
                    instant(at) for at in upcoming(schedule_of(spec), now, number, anchor=spec.anchor_at)
                ],
                "status": job.status,
                "ahead": [ahead_json(one) for one in ahead],
            }
        )


def ahead_json(one: Ahead) -> Json:
    change, stop = one.change, one.stop
    return {
        "planned_at": instant(one.planned_at),
        "starts_at": instant(one.starts_at),
        "window_ends_at": instant(one.window_ends_at),
        "skipped": change is not None and change.moved_to is None,
        "moved_to": instant(change.moved_to) if change else None,
        "change": change.pk if change else None,
        "stop": stop_json(stop, one.held) if stop else None,
        "in_words": one.in_words,
    }


def stop_json(stop: StopRow, held: bool) -> Json:
    return {
        "id": stop.id,
        "kind": stop.kind,
        "effect": stop.effect,
        "note": stop.note,
        "ends_at": instant(stop.over_at),
        "held": held,
        "link": f"{BASE}/{stop.kind}s/{stop.id}",
    }
