"""Jobs over HTTP: parse, call the service, render."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet
from django.utils.module_loading import import_string
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from jobs import instants, known_targets, services, signals, specs
from jobs.api import schema
from jobs.api.authentication import key_of, tenant_of
from jobs.api.representation import instant, job_json, jobs_json
from jobs.catch_up_spec import CATCH_UP_POLICIES
from jobs.database_clock import database_now
from jobs.idempotency import Answer, once, read_key
from jobs.input_checks import Json, expect_object, listed, refuse_unknown, refused, shown
from jobs.missed import missed_so_far
from jobs.models import Job, JobStatus, JobVersion, Role
from jobs.refusals import Missing
from jobs.schedules import Schedule, in_words, upcoming
from jobs.tenants import may
from jobs.working_times import found_calendar

MOST_TIMES = 100


class Jobs(APIView):
    newest_first = ("created_at", "id")

    @schema.list_of_jobs
    def get(self, request: Request) -> Response:
        refuse_unknown_query(
            request, ("tag", "status", "held_by", "q", "pool", "calendar", "secret", "limit", "cursor")
        )
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
        given = read_given(request.data, ("reason", "until"))
        until: datetime | None | services.Unchanged = services.UNCHANGED
        if "until" in given:
            until = None if given["until"] is None else instants.read(given["until"], "until")
        services.pause_job(find_job(request, job_id), given["reason"], until)
        return shown_job(request, job_id)


class ResumeJob(JobAction):
    @schema.resume_job
    def post(self, request: Request, job_id: str) -> Response:
        given = read_given(request.data, ("reason", "catch_up"))
        policy = _read_policy(given.get("catch_up"))
        resumed = services.resume_with(find_job(request, job_id), given["reason"], policy)
        missed = resumed.missed.as_json() if resumed.missed else None
        return Response({**_one_job(request, job_id), "missed": missed})


class CancelJob(JobAction):
    @schema.cancel_job
    def post(self, request: Request, job_id: str) -> Response:
        return self.act(request, job_id, services.cancel_job)


class SchedulePreview(APIView):
    """Of a schedule nobody has saved: reading it changes nothing, so the lowest role may ask."""

    write_role = Role.VIEWER

    @schema.preview_schedule
    def post(self, request: Request) -> Response:
        given = expect_object(request.data, "")
        refuse_unknown(given, ("schedule", "n"), "")
        if "schedule" not in given:
            raise refused("schedule", "schedule is required", code="required")
        schedule, _ = specs.read_named(tenant_of(request), given["schedule"], "preview", find=found_calendar)
        return Response(_preview(schedule, read_count(given.get("n", 10))))


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
    return Response(_one_job(request, job_id))


def _one_job(request: Request, job_id: str) -> Json:
    """With what it has missed so far, which is counted for one job at a time."""
    job = find_job(request, job_id)
    spec = job.spec
    missed = missed_so_far(job, spec, database_now())
    shown = job_json(job, spec, secrets=sees_secrets(request))
    warnings = _warnings(job, spec)
    return {**shown, "missed_so_far": missed.as_json() if missed else None, "warnings": warnings}


def _warnings(job: Job, spec: JobVersion) -> list[str]:
    """What was accepted, and will not do much as things are."""
    return [text for text in (known_targets.warning(spec.target, job.pool, job.tenant),) if text]


def sees_secrets(request: Request) -> bool:
    """Who may write a target may read what stands in it."""
    return may(key_of(request).role, Role.ADMIN)


def read_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Missing(f"{text[:60]} is not an id", hint="ids are UUIDs") from None


def read_reason(data: Any) -> str:
    """All that cancel, retry and lift take."""
    return str(read_given(data, ("reason",))["reason"])


def read_given(data: Any, known: tuple[str, ...]) -> Json:
    given = expect_object(data, "")
    refuse_unknown(given, known, "")
    reason = given.get("reason", "")
    if not isinstance(reason, str) or len(reason) > 500:
        raise refused("reason", f"{shown(reason)} is not a reason", "a string of at most 500 characters")
    return {**given, "reason": reason}


def _read_policy(given: object) -> str | None:
    """For this once; null: the job's own."""
    if given is None or given in CATCH_UP_POLICIES:
        return None if given is None else str(given)
    raise refused(
        "catch_up",
        f"{shown(given)} is not a catch-up policy",
        f"{', '.join(CATCH_UP_POLICIES)} or null",
    )


def answer_once(request: Request, act: Callable[[], Answer], told_apart_by: object = None) -> Response:
    """With an Idempotency-Key the act is done once, however often it is asked. Another body is another request;
    where a digest of the body must not be kept, it is `told_apart_by` something else."""
    given = request.headers.get("Idempotency-Key", "")
    if given:
        what = f"{request.method} {request.path}"
        body = request.data if told_apart_by is None else told_apart_by
        answer = once(tenant_of(request), read_key(given), what, body, act)
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
    warnings = _warnings(job, job.spec)
    return Answer(201, {**body, "estimated_start_at": body["next_run_at"], "warnings": warnings})


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
    if held_by := request.query_params.get("held_by"):
        if held_by not in schema.HELD_BY:
            raise refused("held_by", f"{shown(held_by)} holds no jobs", listed(schema.HELD_BY, "one of"))
        answers: list[tuple[Any, Any]] = signals.held_jobs_asked.send(Job)
        for _listener, held in answers:
            jobs = jobs.filter(pk__in=held)
    if pool := request.query_params.get("pool"):
        jobs = jobs.filter(pool__slug=pool)
    if calendar := request.query_params.get("calendar"):
        planned_by = JobVersion.objects.filter(
            job=OuterRef("pk"),
            version=OuterRef("version"),
            calendar__name=calendar,
            calendar__deleted_at=None,
        )
        jobs = jobs.filter(Exists(planned_by))
    if secret := request.query_params.get("secret"):
        refers = JobVersion.objects.exclude(secret_names=[]).filter(
            job=OuterRef("pk"), version=OuterRef("version"), secret_names__contains=[secret]
        )
        jobs = jobs.filter(Exists(refers))
    if text := request.query_params.get("q"):
        jobs = jobs.filter(name__icontains=text)
    return jobs


def _preview(schedule: Schedule, number: int) -> dict[str, Any]:
    now = database_now()
    times = [instant(planned) for planned in upcoming(schedule, now, number, anchor=now)]
    return {"schedule_in_words": in_words(schedule), "now": instant(now), "times": times}


def read_count(given: Any) -> int:
    text = str(given) if isinstance(given, str | int) and not isinstance(given, bool) else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= MOST_TIMES):
        raise refused("n", f"{shown(given)} is not a number of times", f"1 to {MOST_TIMES}")
    return int(text)
