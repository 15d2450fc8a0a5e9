"""Serve jobs: list, create, read, edit and delete them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from auditlog.redaction import redact
from jobs.api.authentication import principal_of, tenant_of
from jobs.api.editions import ETAG, IF_MATCH, IF_NONE_MATCH, editions_seen, etag_of, has_seen
from jobs.api.idempotency import StoredResponse
from jobs.api.job_filters import JobFilters
from jobs.api.openapi import PROBLEM, creation, operation
from jobs.api.requests import BASE, answer_once, instant, read_id
from jobs.api.views import ListView
from jobs.clock import database_now
from jobs.errors import InvalidInput, Missing
from jobs.models import Calendar, Job, JobClock, JobStatus, JobVersion, Override, Pool, Role
from jobs.models.joined import Joined
from jobs.secrets.references import misspelt_references
from jobs.services import definition as services
from jobs.services.locking import edition
from jobs.services.missed import HELD_BACK, missed_json, missed_so_far
from jobs.services.occurrences import next_run_of
from jobs.services.overrides import open_overrides
from jobs.spec.breaker import BREAKER
from jobs.spec.catch_up import CATCH_UP
from jobs.spec.fields import FIELDS, fields_json
from jobs.spec.retry import RETRY
from jobs.spec.schedule import SCHEMA, describe_schedule
from jobs.spec.targets import KINDS, availability
from jobs.spec.targets.kind import targets_schema
from jobs.validation.checks import Json
from jobs.validation.schema import INSTANT, MAYBE_INSTANT, Schema, number, obj, patch_of, ref, text

PRESENT_JOB = Joined(
    {
        "job": Job,
        "pool": Pool,
        "clock": JobClock,
        "spec": JobVersion,
        "calendar": Calendar,
    },
    """
    FROM beatkeeper_job job
        JOIN beatkeeper_pool pool ON pool.id = job.pool_id
        JOIN beatkeeper_job_clock clock ON clock.job_id = job.id
        JOIN beatkeeper_job_version spec ON spec.job_id = job.id AND spec.version = job.version
        LEFT JOIN beatkeeper_calendar calendar ON calendar.id = spec.calendar_id
    WHERE job.id = %(job)s AND job.tenant_id = %(tenant)s AND job.deleted_at IS NULL
    """,
    "EXISTS (SELECT FROM beatkeeper_override change WHERE change.job_id = job.id AND change.done_at IS NULL)",
)
LINKS = ("runs", "preview", "times", "explain", "missed", "versions")
PROPERTIES = {name: field.property for name, field in FIELDS.items()}
# Fields that are objects: a merge patch of each is a component of its own.
NESTED: dict[str, Schema] = {
    "schedule": SCHEMA,
    "target": {"oneOf": [kind.schema for kind in KINDS.values()]},
    **{field.name: field.schema for field in (CATCH_UP, RETRY, BREAKER)},
}
PATCHES = {name: f"{name.title().replace('_', '')}Changes" for name in NESTED}
COMPONENTS = {
    "Problem": PROBLEM,
    "Target": targets_schema(KINDS.values()),
    **{kind.component: kind.schema for kind in KINDS.values()},
    "RunInput": {
        "anyOf": [ref(kind.input_component) for kind in KINDS.values()],
        "description": "For one run alone, by the kind of the job's target. At most 64 KB.",
    },
    **{kind.input_component: kind.input_schema for kind in KINDS.values()},
    "JobSpec": obj(
        PROPERTIES,
        required=[name for name, field in FIELDS.items() if field.required],
    ),
    "JobChanges": obj(
        {
            name: ref(PATCHES[name])
            if name in PATCHES
            else patch_of(field.schema, nullable=not field.required)
            for name, field in FIELDS.items()
        },
        additionalProperties=False,
        description="What shall change, as a JSON merge patch.",
    ),
    **{
        PATCHES[name]: patch_of(schema, nullable=not FIELDS[name].required) for name, schema in NESTED.items()
    },
    "Job": obj(
        {
            "id": text(format="uuid"),
            **PROPERTIES,
            "status": text(enum=list(JobStatus.values)),
            "status_reason": text(),
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
                "description": "In the answer to one job: what was accepted, and will not do much as things are. "
                "Whether a worker knows the target is said when target or pool are given; later `explain` says it.",
            },
            "schedule_description": text(),
            "next_run_at": {
                **MAYBE_INSTANT,
                "description": "When its next run goes: past skipped times, and with moved ones.",
            },
            "estimated_start_at": {**MAYBE_INSTANT, "description": "In the answer to a creation."},
            "created_at": INSTANT,
            "updated_at": INSTANT,
            "links": obj({name: text() for name in ("self", *LINKS)}),
        },
        may_lack=("warnings", "estimated_start_at"),
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
        parameters=(ETAG,),
    )
    def post(self, request: Request) -> Response:
        def act() -> StoredResponse:
            return _created(*services.create_with_spec(tenant_of(request), request.data))

        return answer_once(request, act, more=lambda body: {"ETag": etag_of(body)})


class OneJob(APIView):
    @operation(
        "read_job",
        "Read a job",
        tag="jobs",
        gives=ref("Job"),
        errors=(400, 404),
        bodiless={304: "Definition and status are as you have read them; `next_run_at` may have moved."},
        parameters=(IF_NONE_MATCH, ETAG),
    )
    def get(self, request: Request, job_id: str) -> Response:
        job, spec, overridden = find_with_spec(request, job_id)
        if has_seen(request, edition(job)):
            return Response(status=304, headers={"ETag": f'"{edition(job)}"'})
        return job_response(request, job, spec, overridden=overridden)

    @operation(
        "edit_job",
        "Change a job",
        tag="jobs",
        takes=ref("JobChanges"),
        gives=ref("Job"),
        errors=(400, 404, 409, 412),
        parameters=(IF_MATCH, ETAG),
        about="A JSON merge patch (RFC 7396): what it leaves out stays, also within `schedule`, `target`, `retry` "
        "and the others; null deletes, so that the default counts; a list replaces a list. A schedule or a target "
        "of another kind replaces the one before, and `warnings` names what is gone with that. "
        "`application/merge-patch+json` is taken as well. "
        "What is due by now is triggered under the old schedule first; the new one plans from now on.",
    )
    def patch(self, request: Request, job_id: str) -> Response:
        seen = editions_seen(request)
        job, not_kept = services.patch_job(find_job(request, job_id), request.data, seen=seen)
        spec = job.spec
        unknown = _unknown_target(job, spec) if {"target", "pool"}.intersection(request.data) else []
        return job_response(request, job, spec, warnings=[*not_kept, *unknown])

    @operation(
        "delete_job",
        "Delete a job",
        tag="jobs",
        status=204,
        errors=(400, 404, 412),
        parameters=(IF_MATCH,),
        about="Unfinished runs are cancelled; the runs stay readable and the name is free again.",
    )
    def delete(self, request: Request, job_id: str) -> Response:
        services.delete_job(find_job(request, job_id), seen=editions_seen(request))
        return Response(status=204)


def find_job(request: Request, job_id: str) -> Job:
    """Find a job of the caller's tenant; one of another tenant is missing too."""
    return find_with_spec(request, job_id)[0]


def find_with_spec(request: Request, job_id: str) -> tuple[Job, JobVersion, bool]:
    """Find a job, its present version, and whether times of it are skipped or moved."""
    tenant = tenant_of(request)
    found = PRESENT_JOB.first({"job": read_id(job_id), "tenant": tenant.pk})
    if found is None:
        raise Missing(f"there is no job {job_id[:60]}")
    job, job.pool, job.clock, spec, spec.calendar, overridden = found
    job.tenant = tenant
    return job, spec, overridden


def sees_secrets(request: Request) -> bool:
    """Test whether the caller may write targets, and so may read what stands in them."""
    return principal_of(request).may(Role.ADMIN)


def job_json(job: Job, spec: JobVersion, overrides: Iterable[Override] = (), *, secrets: bool) -> Json:
    """Render a job so that its fields can be posted again; without `secrets`, secret values are redacted.

    `overrides` are those that are not done yet.
    """
    fields = fields_json(job, spec)
    if not secrets:
        fields.update({name: redact(fields[name]) for name, field in FIELDS.items() if field.redacted})
    address = f"{BASE}/jobs/{job.pk}"
    return {
        "id": str(job.pk),
        **fields,
        "status": job.status,
        "status_reason": job.status_reason,
        "status_at": instant(job.status_at),
        "paused_until": instant(job.paused_until),
        "missed_so_far": None,
        "version": job.version,
        "schedule_description": schedule_description(spec),
        "next_run_at": instant(next_run_of(job, spec, overrides)),
        "created_at": instant(job.created_at),
        "updated_at": instant(job.updated_at),
        "links": {"self": address, **{name: f"{address}/{name}" for name in LINKS}},
    }


def jobs_json(jobs: Iterable[Job], *, secrets: bool) -> list[Json]:
    """Render jobs with one query for all their versions, and one for their overrides."""
    jobs = list(jobs)
    overrides: defaultdict[UUID, list[Override]] = defaultdict(list)
    for override in Override.objects.filter(job__in=[job.pk for job in jobs], done_at=None):
        overrides[override.job_id].append(override)
    specs = JobVersion.objects.filter(job__in=[job.pk for job in jobs], version=F("job__version"))
    by_job = {spec.job_id: spec for spec in specs}
    return [job_json(job, by_job[job.pk], overrides[job.pk], secrets=secrets) for job in jobs]


def job_response(
    request: Request,
    job: Job,
    spec: JobVersion,
    warnings: Sequence[str] = (),
    *,
    overridden: bool = True,
    **more: Any,
) -> Response:
    """Answer one job with what it has missed so far, which is counted for one job at a time.

    A change answers the job as the change has left it: read again, it could be that of the next change, and its ETag
    would let the caller undo what it has not seen. The times that are skipped or moved are read unless there are none.
    """
    # The database is asked for its time only if it matters.
    missed = missed_so_far(job, spec, database_now()) if job.status in HELD_BACK else None
    overrides = open_overrides(job) if overridden else ()
    body = {
        **job_json(job, spec, overrides, secrets=sees_secrets(request)),
        "missed_so_far": missed_json(missed) if missed else None,
        "warnings": [*warnings, *misspelt_references(spec.target, "target")],
        **more,
    }
    return Response(body, headers={"ETag": etag_of(body)})


def schedule_description(spec: JobVersion) -> str:
    try:
        return describe_schedule(spec.schedule, str(spec.job_id))
    except InvalidInput as unreadable:
        return f"unreadable: {unreadable.field}: {unreadable.detail}"


def _created(job: Job, spec: JobVersion) -> StoredResponse:
    warnings = [*_unknown_target(job, spec), *misspelt_references(spec.target, "target")]
    body = {**job_json(job, spec, secrets=True), "warnings": warnings}
    return StoredResponse(201, {**body, "estimated_start_at": body["next_run_at"]})


def _unknown_target(job: Job, spec: JobVersion) -> list[str]:
    """Warn of a target that no worker knows. Clients poll jobs, so only what names target or pool asks."""
    found = availability.warning(spec.target, job.pool, job.tenant)
    return [found] if found else []
