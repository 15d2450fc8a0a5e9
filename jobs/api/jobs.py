"""Serve jobs: list, create, read, edit and delete them."""

from collections.abc import Iterable

from django.db.models import F, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from auditlog.redaction import redact
from jobs.api.authentication import principal_of, tenant_of
from jobs.api.idempotency import StoredResponse
from jobs.api.job_filters import JobFilters
from jobs.api.openapi import PROBLEM, creation, operation
from jobs.api.requests import BASE, answer_once, instant, read_id
from jobs.api.views import ListView
from jobs.clock import database_now
from jobs.errors import InvalidInput
from jobs.models import Job, JobStatus, JobVersion, Role
from jobs.services import definition as services
from jobs.services.missed import missed_json, missed_so_far
from jobs.spec.fields import FIELDS, stored
from jobs.spec.schedule import describe_schedule
from jobs.spec.targets import KINDS, availability
from jobs.spec.targets.kind import targets_schema
from jobs.validation.checks import Json
from jobs.validation.rows import first_or_missing
from jobs.validation.schema import INSTANT, MAYBE_INSTANT, number, obj, ref, text

LINKS = ("runs", "preview", "times", "explain")
PROPERTIES = {name: field.property for name, field in FIELDS.items()}
COMPONENTS = {
    "Problem": PROBLEM,
    "Target": targets_schema(KINDS.values()),
    **{kind.component: kind.schema for kind in KINDS.values()},
    "JobSpec": obj(
        PROPERTIES,
        required=[name for name, field in FIELDS.items() if field.required],
        additionalProperties=False,
    ),
    "JobChanges": obj(
        PROPERTIES,
        additionalProperties=False,
        description="What shall change; nested values are replaced whole.",
    ),
    "Job": obj(
        {
            "id": text(format="uuid"),
            **PROPERTIES,
            "status": text(enum=list(JobStatus.values)),
            "status_note": text(),
            "status_at": INSTANT,
            "paused_until": {**MAYBE_INSTANT, "description": "It goes on by itself then."},
            "missed_so_far": {
                "allOf": [ref("Missed")],
                "nullable": True,
                "description": "Read alone, while it is paused: what resuming it now would find and do.",
            },
            "version": number(),
            "warnings": {
                "type": "array",
                "items": text(),
                "description": "In the answer to one job: what was accepted, and will not do much as things are.",
            },
            "schedule_description": text(),
            "next_run_at": MAYBE_INSTANT,
            "estimated_start_at": {**MAYBE_INSTANT, "description": "In the answer to a creation."},
            "created_at": INSTANT,
            "updated_at": INSTANT,
            "links": obj({name: text() for name in ("self", *LINKS)}),
        }
    ),
}


class Jobs(ListView):
    queryset = Job.objects.all()
    filterset_class = JobFilters

    def get_queryset(self) -> QuerySet[Job]:
        return Job.objects.of(tenant_of(self.request)).select_related("pool", "clock")

    @operation("list_jobs", "Jobs, newest first", tag="jobs", gives=ref("Job"), errors=(400,))
    def get(self, request: Request) -> Response:
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response(jobs_json(page or [], secrets=sees_secrets(request)))

    @creation(
        "create_job",
        "Create a job",
        tag="jobs",
        takes=ref("JobSpec"),
        gives=ref("Job"),
        errors=(400, 409, 422),
    )
    def post(self, request: Request) -> Response:
        return answer_once(request, lambda: _created(services.create_job(tenant_of(request), request.data)))


class OneJob(APIView):
    @operation("read_job", "Read a job", tag="jobs", gives=ref("Job"), errors=(404,))
    def get(self, request: Request, job_id: str) -> Response:
        return Response(one_job_json(request, job_id))

    @operation(
        "edit_job",
        "Change a job",
        tag="jobs",
        takes=ref("JobChanges"),
        gives=ref("Job"),
        errors=(400, 404, 409),
        about="What is due by now is triggered under the old schedule first; the new one plans from now on.",
    )
    def patch(self, request: Request, job_id: str) -> Response:
        services.edit_job(find_job(request, job_id), request.data)
        return Response(one_job_json(request, job_id))

    @operation(
        "delete_job",
        "Delete a job",
        tag="jobs",
        status=204,
        errors=(404,),
        about="Unfinished runs are cancelled; the runs stay readable and the name is free again.",
    )
    def delete(self, request: Request, job_id: str) -> Response:
        services.delete_job(find_job(request, job_id))
        return Response(status=204)


def find_job(request: Request, job_id: str) -> Job:
    """Find a job of the caller's tenant; one of another tenant is missing too."""
    jobs = Job.objects.of(tenant_of(request)).select_related("tenant", "pool", "clock")
    return first_or_missing(jobs.filter(pk=read_id(job_id)), f"there is no job {job_id[:60]}")


def sees_secrets(request: Request) -> bool:
    """Test whether the caller may write targets, and so may read what stands in them."""
    return principal_of(request).may(Role.ADMIN)


def job_json(job: Job, spec: JobVersion, *, secrets: bool) -> Json:
    """Render a job so that its fields can be posted again; without `secrets`, secret values are redacted."""
    fields = {name: field.as_json(stored(field, job, spec)) for name, field in FIELDS.items()}
    if not secrets:
        fields.update({name: redact(fields[name]) for name, field in FIELDS.items() if field.redacted})
    address = f"{BASE}/jobs/{job.pk}"
    return {
        "id": str(job.pk),
        **fields,
        "status": job.status,
        "status_note": job.status_note,
        "status_at": instant(job.status_at),
        "paused_until": instant(job.paused_until),
        "missed_so_far": None,
        "version": job.version,
        "schedule_description": schedule_description(spec),
        "next_run_at": instant(job.clock.next_run_at),
        "created_at": instant(job.created_at),
        "updated_at": instant(job.updated_at),
        "links": {"self": address, **{name: f"{address}/{name}" for name in LINKS}},
    }


def jobs_json(jobs: Iterable[Job], *, secrets: bool) -> list[Json]:
    """Render jobs with one query for all their versions."""
    jobs = list(jobs)
    specs = JobVersion.objects.filter(job__in=[job.pk for job in jobs], version=F("job__version"))
    by_job = {spec.job_id: spec for spec in specs}
    return [job_json(job, by_job[job.pk], secrets=secrets) for job in jobs]


def one_job_json(request: Request, job_id: str) -> Json:
    """Render one job with what it has missed so far, which is counted for one job at a time."""
    job = find_job(request, job_id)
    spec = job.spec
    missed = missed_so_far(job, spec, database_now())
    return {
        **job_json(job, spec, secrets=sees_secrets(request)),
        "missed_so_far": missed_json(missed) if missed else None,
        "warnings": _warnings(job, spec),
    }


def schedule_description(spec: JobVersion) -> str:
    try:
        return describe_schedule(spec.schedule, str(spec.job_id))
    except InvalidInput as unreadable:
        return f"unreadable: {unreadable.field}: {unreadable.detail}"


def _created(job: Job) -> StoredResponse:
    spec = job.spec
    body = {**job_json(job, spec, secrets=True), "warnings": _warnings(job, spec)}
    return StoredResponse(201, {**body, "estimated_start_at": body["next_run_at"]})


def _warnings(job: Job, spec: JobVersion) -> list[str]:
    """List what was accepted but keeps the job from running as things are."""
    found = availability.warning(spec.target, job.pool, job.tenant)
    return [found] if found else []
