"""Jobs over HTTP: parse, call the service, render."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet
from django.utils.module_loading import import_string
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import services, specs
from jobs.api import schema
from jobs.api.authentication import key_of, tenant_of
from jobs.api.representation import Json, instant, job_json, jobs_json
from jobs.database_clock import database_now
from jobs.idempotency import Answer, once, read_key
from jobs.input_checks import expect_object, listed, refuse_unknown, refused, shown
from jobs.models import Job, JobStatus, Role
from jobs.refusals import Missing
from jobs.schedules import in_words, upcoming
from jobs.tenants import may

MOST_TIMES = 100


class Jobs(APIView):
    newest_first = ("created_at", "id")

    @schema.list_of_jobs
    def get(self, request: Request) -> Response:
        refuse_unknown_query(request, ("tag", "status", "q", "pool", "limit", "cursor"))
        return paged(
            self, request, _filtered(request), lambda page: jobs_json(page, secrets=sees_secrets(request))
        )

    @schema.create_job
    def post(self, request: Request) -> Response:
        return answer_once(request, lambda: _created(services.create_job(tenant_of(request), request.data)))


class OneJob(APIView):
    @schema.read_job
    def get(self, request: Request, job_id: str) -> Response:
        return shown_job(request, job_id)

    @schema.edit_job
    def patch(self, request: Request, job_id: str) -> Response:
        services.edit_job(find_job(request, job_id), request.data)
        return shown_job(request, job_id)

    @schema.delete_job
    def delete(self, request: Request, job_id: str) -> Response:
        services.delete_job(find_job(request, job_id))
        return Response(status=204)


class JobAction(APIView):
    write_role = Role.OPERATOR

    def act(self, request: Request, job_id: str, service: Callable[[Job, str], Job]) -> Response:
        service(find_job(request, job_id), read_reason(request.data))
        return shown_job(request, job_id)


class PauseJob(JobAction):
    @schema.pause_job
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(request, job_id, services.pause_job)


class ResumeJob(JobAction):
    @schema.resume_job
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(request, job_id, services.resume_job)


class CancelJob(JobAction):
    @schema.cancel_job
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(request, job_id, services.cancel_job)


class JobPreview(APIView):
    @schema.preview_job
    def get(self, request: Request, job_id: str) -> Response:
        job = find_job(request, job_id)
        refuse_unknown_query(request, ("n",))
        number = _read_number(request.query_params.get("n", "10"))
        return Response(_preview(job.spec.schedule, str(job.pk), number, job.spec.anchor_at))


class SchedulePreview(APIView):
    """Of a schedule nobody has saved: reading it changes nothing, so the lowest role may ask."""

    write_role = Role.VIEWER

    @schema.preview_schedule
    def post(self, request: Request) -> Response:
        given = expect_object(request.data, "")
        refuse_unknown(given, ("schedule", "n"), "")
        if "schedule" not in given:
            raise refused("schedule", "schedule is required", code="required")
        schedule = specs.read_schedule(given["schedule"], "preview").as_json()
        return Response(_preview(schedule, "preview", _read_number(given.get("n", 10)), None))


def paged(
    view: APIView, request: Request, rows: QuerySet[Any], render: Callable[[list[Any]], list[Json]]
) -> Response:
    """By the project's pagination, found through its setting: this app does not import the project."""
    pages = import_string(str(settings.REST_FRAMEWORK["DEFAULT_PAGINATION_CLASS"]))()
    answer: Response = pages.get_paginated_response(render(pages.paginate_queryset(rows, request, view)))
    return answer


def find_job(request: Request, job_id: str) -> Job:
    """Of this tenant. One of another looks the same as none."""
    jobs = Job.objects.of(tenant_of(request)).select_related("tenant", "pool", "clock")
    job = jobs.filter(pk=read_id(job_id)).first()
    if job is None:
        raise Missing(f"there is no job {job_id[:60]}")
    return job


def shown_job(request: Request, job_id: str) -> Response:
    return Response(job_json(find_job(request, job_id), secrets=sees_secrets(request)))


def sees_secrets(request: Request) -> bool:
    """Who may write a target may read what stands in it."""
    return may(key_of(request).role, Role.ADMIN)


def read_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Missing(f"{text[:60]} is not an id", hint="ids are UUIDs") from None


def read_reason(data: Any) -> str:
    """All that pause, resume, cancel and retry take."""
    given = expect_object(data, "")
    refuse_unknown(given, ("reason",), "")
    reason = given.get("reason", "")
    if not isinstance(reason, str) or len(reason) > 500:
        raise refused("reason", f"{shown(reason)} is not a reason", "a string of at most 500 characters")
    return reason


def answer_once(request: Request, act: Callable[[], Answer]) -> Response:
    """With an Idempotency-Key the act is done once, however often it is asked."""
    given = request.headers.get("Idempotency-Key", "")
    if given:
        what = f"{request.method} {request.path}"
        answer = once(tenant_of(request), read_key(given), what, request.data, act)
    else:
        answer = act()
    headers = {"Idempotency-Replayed": "true"} if answer.replayed else {}
    if answer.status == 201:
        headers["Location"] = answer.body["links"]["self"]
    return Response(answer.body, status=answer.status, headers=headers)


def refuse_unknown_query(request: Request, known: tuple[str, ...]) -> None:
    """A filter with a typing mistake would otherwise answer with everything."""
    refuse_unknown(dict(request.query_params), known, "")
    for name, values in request.query_params.lists():
        if any("\x00" in value for value in values):
            raise refused(name, f"{name} holds a NUL character")


def _created(job: Job) -> Answer:
    body = job_json(job, secrets=True)
    return Answer(201, {**body, "estimated_start_at": body["next_run_at"]})


def _filtered(request: Request) -> QuerySet[Job]:
    jobs = Job.objects.of(tenant_of(request)).select_related("pool", "clock")
    for tag in request.query_params.getlist("tag"):
        name, colon, value = tag.partition(":")
        if not colon:
            raise refused("tag", f"{shown(tag)} is not a tag", "tag=key:value")
        jobs = jobs.filter(tags__contains={name: value})
    if status := request.query_params.get("status"):
        if status not in JobStatus.values:
            raise refused("status", f"{shown(status)} is not a status", listed(JobStatus.values, "one of"))
        jobs = jobs.filter(status=status)
    if pool := request.query_params.get("pool"):
        jobs = jobs.filter(pool__slug=pool)
    if text := request.query_params.get("q"):
        jobs = jobs.filter(name__icontains=text)
    return jobs


def _preview(schedule: Any, hash_id: str, number: int, anchor: Any) -> dict[str, Any]:
    now = database_now()
    parsed = specs.read_schedule(schedule, hash_id)
    times = upcoming(parsed, now, number, anchor=anchor or now)
    return {"schedule_in_words": in_words(parsed), "now": instant(now), "times": [instant(t) for t in times]}


def _read_number(given: Any) -> int:
    text = str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MOST_TIMES):
        raise refused("n", f"{shown(given)} is not a number of times", f"1 to {MOST_TIMES}")
    return int(text)
