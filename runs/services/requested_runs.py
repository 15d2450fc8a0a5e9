"""Carry out requests of code for runs, at once or at an instant, by the same services as everybody's.

Over the API a request is carried out before it is answered. One that was written into the table by a code base that
sees the database only waits for the next pass of a scheduler. Either way its key makes it one.
"""

import json
import logging
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from django.db import transaction

from jobs.access import worker_keys
from jobs.clock import database_now
from jobs.declarations import apply_waiting, export
from jobs.errors import DomainError, KeyReused, Missing, RunIsFinal
from jobs.models import Job, JobStatus, Pool, RunRequest, Tenant
from jobs.services.definition import create_job
from jobs.services.locking import lock
from jobs.services.status import cancel_job
from jobs.validation import instants
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, refuse_unprintable
from jobs.validation.rows import first_or_missing
from runs import history
from runs.services import runs as services
from runs.sql import fetch
from scheduler_project.sdk.ids import run_id, whole_milliseconds
from scheduler_project.sdk.secret_values.references import names_in

logger = logging.getLogger(__name__)

MAX_KEY_LENGTH = 200


def request_run(tenant: Tenant, pool: Pool, data: object, *, of_key: bool = False) -> tuple[Json, bool]:
    """Return the request and whether it is new. The same key with the same words again is the same request.

    `of_key`: the request comes with a worker's key.
    """
    given = expect_object(data, "", ("key", "pool", "spec", "at"))
    spec, key = expect_object(given.get("spec"), "spec"), given.get("key")
    if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_LENGTH:
        hint = f"1 to {MAX_KEY_LENGTH} printable characters"
        raise invalid("key", f"{abbreviate(key)} is not a key", hint)
    refuse_unprintable(key, "key")
    at = None if given.get("at") is None else instants.read(given["at"], "at")
    with transaction.atomic():
        request, new = RunRequest.objects.get_or_create(
            tenant=tenant, key=key, defaults={"pool": pool, "spec": spec, "at": at}
        )
        if not new and (request.spec, request.at, request.pool_id) != (spec, at, pool.pk):
            wrong = f"the key {abbreviate(key)} was used for another request"
            raise KeyReused(wrong, field="key", hint="a new key for every request")
        if new:
            if of_key:
                _check_reach(request)
            carry_out(request)
            request.applied_at = database_now()
            request.save()
    return request_as_json(tenant, request.pk), new


def cancel(tenant: Tenant, pool: Pool | None, identity: UUID) -> Json:
    """Cancel a request. A pool is given when the key is for this pool alone."""
    with transaction.atomic():
        request = find(tenant, pool, identity, lock=True)
        if request.cancel_requested_at is None:
            if pool is not None:
                _check_its_job(request, pool)
            request.cancel_requested_at = database_now()
            carry_out(request)
            request.save()
    return request_as_json(tenant, identity)


def find(tenant: Tenant, pool: Pool | None, identity: UUID, *, lock: bool = False) -> RunRequest:
    """Return the request, of this tenant and, when one is given, of this pool."""
    requests = RunRequest.objects.select_for_update() if lock else RunRequest.objects.all()
    requests = requests.filter(pool=pool) if pool is not None else requests
    return first_or_missing(requests.filter(tenant=tenant, pk=identity), f"there is no request {identity}")


def request_as_json(tenant: Tenant, identity: UUID) -> Json:
    found = fetch("requested_run", tenant=tenant.slug, id=identity, key=None)
    if not found:
        raise Missing(f"there is no request {identity}")
    parsed = {
        name: json.loads(text) for name in ("spec", "result") if isinstance(text := found[0][name], str)
    }
    return {**found[0], **parsed}


def apply_requests(limit: int = 20, put_off: set[UUID] | None = None) -> int:
    """Carry out the requests that wait in the table, oldest first; return how many were looked at."""
    waiting = RunRequest.objects.order_by("requested_at", "pk")
    return apply_waiting(waiting, carry_out, ("job", "run"), limit, put_off)


def carry_out(request: RunRequest) -> None:
    """Make the run or the one-time job, or end either. Doing it again changes nothing more."""
    if request.cancel_requested_at is not None:
        _cancel(request)
    elif request.job_id is None:
        _start(request)


def _start(request: RunRequest) -> None:
    now = database_now()
    if request.at is not None and request.at < request.requested_at - services.LATE:
        wrong, hint = f"{instants.as_text(request.at)} is in the past", f"it is now {instants.as_text(now)}"
        raise invalid("at", wrong, hint, "past")
    # One that was reached late runs at once.
    later = request.at if request.at is not None and request.at > now else None
    if "input" in request.spec:
        expect_object(request.spec, "spec", ("name", "input"))
        job = _declared_job(request)
    else:
        job, planned_at = _one_time_job(request, later)
        if planned_at is not None:
            request.job, request.run = job, run_id(job.pk, whole_milliseconds(planned_at))
            return
    run = services.run_now(job, request.spec.get("input"), at=later, request=request.pk.bytes)
    request.job, request.run = job, run.pk


def _declared_job(request: RunRequest) -> Job:
    """Return the declared job, of which one more run is requested, with its own input."""
    name = request.spec.get("name")
    if not isinstance(name, str):
        raise invalid("spec.name", f"{abbreviate(name)} is not a name", "that of a declared job")
    jobs = (
        Job.objects.of(request.tenant).select_related("tenant", "pool").filter(name=name, pool=request.pool)
    )
    missing = f"there is no job {abbreviate(name)} in the pool {request.pool}"
    return first_or_missing(jobs, missing, "declare it first: start a worker, or run `beatkeeper apply`")


def _check_reach(request: RunRequest) -> None:
    if "input" not in request.spec:
        worker_keys.check(request.pool, request.spec, None)
        return
    given, present = request.spec.get("input"), _declared_job(request).spec
    worker_keys.check_kind(present.target["kind"])
    if names_in(given):
        worker_keys.check_secrets(given, "spec.input", present.secret_names)


def _check_its_job(request: RunRequest, pool: Pool) -> None:
    """Refuse a one-time job that was moved to another pool. Of a declared job only the run is cancelled."""
    job = request.job
    if job is None or job.deleted_at is not None or "input" in request.spec:
        return
    if lock(job).job.pool_id != pool.pk:
        raise worker_keys.of_another_pool(job.name)


def _one_time_job(request: RunRequest, later: datetime | None) -> tuple[Job, datetime | None]:
    """Make the job and return it with the instant that it waits for. One that has passed since is now."""
    export(request.tenant, request.pool, request.spec)
    spec = {**request.spec, "pool": request.pool.slug, "schedule": None}
    if later is not None:
        try:
            with transaction.atomic():
                job = create_job(request.tenant, {**spec, "schedule": {"at": instants.as_text(later)}})
        except DomainError as refusal:
            if refusal.code != "past":
                raise
        else:
            return job, later
    return create_job(request.tenant, spec), None


def _cancel(request: RunRequest) -> None:
    job = request.job
    if job is None or job.deleted_at is not None or request.run is None:
        return
    if "input" not in request.spec and job.status != JobStatus.CANCELLED:
        cancel_job(job, "its request was cancelled")
        return
    run = history.find(request.run)
    if run is not None:
        with suppress(RunIsFinal):
            services.cancel_run(run, "its request was cancelled")
