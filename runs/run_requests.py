"""Runs that code asks for, at once or at an instant: done by the same services as everybody's.

Over the API a request is carried out before it is answered. One that was written into the table by a code base that
sees the database only waits for the next pass of a scheduler. Either way its key makes it one.
"""

import json
import logging
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import UUID

import psycopg
from django.db import OperationalError, connection, transaction

from jobs import instants, worker_reach
from jobs.database_clock import database_now
from jobs.declarations import export, fulfil, limit_waiting
from jobs.input_checks import Json, expect_object, refuse_unknown, refused, shown
from jobs.locked_job import lock
from jobs.models import Job, JobStatus, Pool, RunRequest, Tenant
from jobs.refusals import KeyReused, Missing, Refused, RunIsFinal
from jobs.services import cancel_job, create_job
from runs import services
from runs.models import Run
from scheduler_project.sdk import plan
from scheduler_project.sdk.ids import run_id, whole_milliseconds
from scheduler_project.sdk.references import names_in
from scheduler_project.sdk.sql import statements

logger = logging.getLogger(__name__)

SQL = statements(Path(plan.__file__).with_name("code_base.sql"))
FIELDS = ("key", "pool", "spec", "at")
LONGEST_KEY = 200
# Asked for in time and reached late: it runs at once. Earlier than that it was a mistake.
LATE = timedelta(minutes=1)


class PutOff(Exception):
    """The request could not be carried out in time: somebody holds what it needs."""


def ask(tenant: Tenant, pool: Pool, data: object, *, of_key: bool = False) -> tuple[Json, bool]:
    """The request and whether it is new. The same key again with the same words is the same request.

    `of_key`: a worker's key asks.
    """
    given = expect_object(data, "")
    refuse_unknown(given, FIELDS, "")
    spec, key, at = (
        expect_object(given.get("spec"), "spec"),
        _read_key(given.get("key")),
        _read_at(given.get("at")),
    )
    with transaction.atomic():
        request, new = RunRequest.objects.get_or_create(
            tenant=tenant, key=key, defaults={"pool": pool, "spec": spec, "at": at}
        )
        if not new and (request.spec, request.at, request.pool_id) != (spec, at, pool.pk):
            raise KeyReused(
                f"the key {shown(key)} was used for another request",
                field="key",
                hint="a new key for every request",
            )
        if new:
            if of_key:
                _check_reach(request)
            carry_out(request)
            request.applied_at = database_now()
            request.save()
    return shown_request(tenant, request.pk), new


def cancel(tenant: Tenant, pool: Pool | None, identity: UUID) -> Json:
    """A pool is given when the key that cancels is for this one alone."""
    with transaction.atomic():
        request = find(tenant, pool, identity, lock=True)
        if request.cancel_requested_at is None:
            if pool is not None:
                _check_its_job(request, pool)
            request.cancel_requested_at = database_now()
            carry_out(request)
            request.save()
    return shown_request(tenant, identity)


def find(tenant: Tenant, pool: Pool | None, identity: UUID, *, lock: bool = False) -> RunRequest:
    """Of this tenant, and of this pool when one is given."""
    requests = RunRequest.objects.select_for_update() if lock else RunRequest.objects.all()
    request = requests.filter(tenant=tenant, pk=identity).first()
    if request is None or (pool is not None and request.pool_id != pool.pk):
        raise Missing(f"there is no request {identity}")
    return request


def shown_request(tenant: Tenant, identity: UUID) -> Json:
    with connection.cursor() as cursor:
        cursor.execute(SQL["requested_run"], {"tenant": tenant.slug, "id": identity, "key": None})
        names, row = [column.name for column in cursor.description], cursor.fetchone()
    if row is None:
        raise Missing(f"there is no request {identity}")
    found = dict(zip(names, row, strict=True))
    parsed = {name: json.loads(found[name]) for name in ("spec", "result") if isinstance(found[name], str)}
    return {**found, **parsed}


def apply_requests(limit: int = 20, put_off: set[UUID] | None = None) -> int:
    """Those that wait in the table, oldest first, each in its own transaction; returns how many were looked at.

    One that waits for a lock is `put_off`, which ends the round; it is tried again when all others had their turn.
    """
    put_off = set() if put_off is None else put_off
    for done in range(limit):
        try:
            if not _apply_next(put_off):
                put_off.clear()
                return done
        except PutOff:
            return done + 1
    return limit


@transaction.atomic
def _apply_next(put_off: set[UUID]) -> bool:
    limit_waiting()
    waiting = RunRequest.objects.select_for_update(skip_locked=True, of=("self",)).filter(applied_at=None)
    waiting = waiting.exclude(pk__in=put_off).select_related("tenant", "pool")
    request = waiting.order_by("requested_at", "pk").first()
    if request is None:
        return False
    wish = f"the request {request.pk} of {request.tenant.slug}"
    try:
        request.error = fulfil(wish, request.pool, partial(carry_out, request))
    except (OperationalError, psycopg.OperationalError) as error:
        put_off.add(request.pk)
        logger.warning("the request %s is put off: %s", request.pk, type(error).__name__)
        raise PutOff(PutOff.__doc__) from error
    request.applied_at = database_now()
    request.save()
    return True


def carry_out(request: RunRequest) -> None:
    """What it asks for now: the run, the one-time job, or the end of either. Doing it again changes nothing more."""
    if request.cancel_requested_at is not None:
        _cancel(request)
    elif request.job_id is None:
        _start(request)


def _start(request: RunRequest) -> None:
    now = database_now()
    if request.at is not None and request.at < request.requested_at - LATE:
        raise refused(
            "at",
            f"{instants.as_text(request.at)} is in the past",
            f"it is now {instants.as_text(now)}",
            "past",
        )
    later = request.at if request.at is not None and request.at > now else None
    if "input" in request.spec:
        if request.at is not None:
            raise refused(
                "at", "a run of a declared job is at once", "leave it out, or give the whole spec of a job"
            )
        job = _declared_job(request)
    else:
        job, later = _one_time_job(request, later)
    if later is not None:
        request.job, request.run = job, run_id(job.pk, whole_milliseconds(later))
    else:
        given = request.spec.get("input")
        request.job, request.run = job, services.run_now(job, given, request=request.pk.bytes).pk


def _declared_job(request: RunRequest) -> Job:
    """A run at once is one more of the declared job, with its own input."""
    name = request.spec.get("name")
    job = (
        Job.objects.of(request.tenant)
        .select_related("tenant", "pool")
        .filter(name=name, pool=request.pool)
        .first()
    )
    if job is None:
        raise Missing(
            f"there is no job {shown(name)} in the pool {request.pool}",
            hint="declare it first: start a worker, or run `beatkeeper apply`",
        )
    return job


def _check_reach(request: RunRequest) -> None:
    if "input" not in request.spec:
        worker_reach.check(request.pool, request.spec, None)
        return
    given, present = request.spec.get("input"), _declared_job(request).spec
    worker_reach.check_kind(present.target["kind"])
    if names_in(given):
        worker_reach.check_secrets(given, "spec.input", present.secret_names)


def _check_its_job(request: RunRequest, pool: Pool) -> None:
    """Of a declared job only the run is cancelled; the job that was made for the request may have been moved."""
    job = request.job
    if job is None or job.deleted_at is not None or "input" in request.spec:
        return
    if lock(job).job.pool_id != pool.pk:
        raise worker_reach.of_another_pool(job.name)


def _one_time_job(request: RunRequest, later: datetime | None) -> tuple[Job, datetime | None]:
    """With the instant it waits for. One that has passed since the caller looked is now."""
    export(request.tenant, request.pool, request.spec)
    spec = {**request.spec, "pool": request.pool.slug, "schedule": None}
    if later is not None:
        try:
            with transaction.atomic():
                job = create_job(request.tenant, {**spec, "schedule": {"at": instants.as_text(later)}})
        except Refused as refusal:
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
    run = Run.objects.filter(pk=request.run).select_related("job").first()
    if run is not None:
        try:
            services.cancel_run(run, "its request was cancelled")
        except RunIsFinal:
            return


def _read_key(value: object) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_KEY or not value.isprintable():
        raise refused("key", f"{shown(value)} is not a key", f"1 to {LONGEST_KEY} printable characters")
    return value


def _read_at(value: object) -> datetime | None:
    return None if value is None else instants.read(value, "at")
