"""Jobs declared by decorators in a team's code: applied through the same services as everybody's."""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import psycopg
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Q, QuerySet

from auditlog.context import acting_as, current_actor
from auditlog.models import ActorKind
from jobs.access import pools, worker_keys
from jobs.clock import database_now
from jobs.errors import Conflict, DomainError, hinted
from jobs.models import Declaration, Job, JobStatus, Pool, RunRequest, Tenant
from jobs.services.definition import create_job, delete_job, edit_job
from jobs.services.locking import limit_waiting, lock
from jobs.services.status import cancel_job
from jobs.spec.targets.celery import MAX_TASK_LENGTH, is_reserved
from jobs.validation.checks import Json
from scheduler_project.sdk.declarations.plan import DeclaredJob, FieldDifference, drift_of
from scheduler_project.sdk.host.database import SQL

logger = logging.getLogger(__name__)
Waiting = TypeVar("Waiting", Declaration, RunRequest)

MAX_WAIT = "2s"
NO_LONGER_DECLARED = "it is no longer declared by its code base"
# Errors of the database, not of a declaration. Runs use psycopg without Django's own errors in between.
TROUBLES = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)


class PutOff(Exception):
    """It could not be applied in time: somebody holds what it changes."""


def apply_declarations(limit: int = 100, put_off: set[int] | None = None, only: Q | None = None) -> int:
    """Apply the declarations that wait, oldest first; return how many were looked at."""
    # Without the spec: one that cannot be read is the error of its declaration, and must not fail the query for all.
    waiting = Declaration.objects.filter(only or Q()).defer("spec").order_by("declared_at", "id")
    return apply_waiting(waiting, _apply, ("job", "applied"), limit, put_off)


def apply_waiting(
    waiting: QuerySet[Waiting],
    act: Callable[[Waiting], None],
    changed: Sequence[str],
    limit: int,
    put_off: set[Any] | None,
) -> int:
    """Apply rows in their order, each in its own transaction; return how many were looked at.

    A row that cannot be applied keeps the reason, where the code base reads it. One that waits for a lock is `put_off`,
    which ends the round; it is tried again when all others had their turn.
    """
    put_off = set() if put_off is None else put_off
    for done in range(limit):
        try:
            if not _apply_next(waiting, act, changed, put_off):
                put_off.clear()
                return done
        except PutOff:
            return done + 1
    return limit


@transaction.atomic
def _apply_next(
    waiting: QuerySet[Waiting], act: Callable[[Waiting], None], changed: Sequence[str], put_off: set[Any]
) -> bool:
    # The pass that applies declarations has other work to do.
    limit_waiting(MAX_WAIT, ("lock_timeout", "statement_timeout"))
    # Another scheduler has the locked ones.
    free = waiting.select_for_update(skip_locked=True, of=("self",)).select_related("tenant", "pool")
    row = free.filter(applied_at=None).exclude(pk__in=put_off).first()
    if row is None:
        return False
    name = f"the {row._meta.verbose_name} {row} of {row.tenant.slug}"
    try:
        row.error = act_for_code(name, row.pool, partial(act, row))
    except (OperationalError, psycopg.OperationalError) as error:
        put_off.add(row.pk)
        logger.warning("%s is put off: %s", name, type(error).__name__)
        raise PutOff(PutOff.__doc__) from error
    row.applied_at = database_now()
    row.save(update_fields=["error", "applied_at", *changed])
    return True


def declared(tenant: Tenant, pool: Pool, names: Sequence[str] | None = None) -> list[DeclaredJob]:
    """Return the declarations of the pool, or those of these names."""
    values = {"tenant": tenant.slug, "pool": pool.slug, "names": None if names is None else list(names)}
    with connection.cursor() as cursor:
        cursor.execute(SQL["declared"], values)
        columns = [column.name for column in cursor.description]
        return [DeclaredJob.read(_parsed(dict(zip(columns, row, strict=True)))) for row in cursor.fetchall()]


def _parsed(row: Json) -> Json:
    """Parse a column of JSON, which Django returns as text from a statement of ours."""
    texts = {name: row[name] for name in ("spec", "applied", "present") if isinstance(row[name], str)}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def drift_of_job(job: Job) -> tuple[Declaration, list[FieldDifference]] | None:
    """Return where a declared job comes from and what was changed by hand since; None if no code declares it."""
    declaration = job.declarations.filter(withdrawn_at=None).select_related("tenant", "pool").first()
    if declaration is None:
        return None
    found = declared(declaration.tenant, declaration.pool, [declaration.name])
    return declaration, [difference for one in found for difference in drift_of(one) if not one.waiting]


@transaction.atomic
def declare(
    tenant: Tenant, pool: Pool, specs: Sequence[Json], *, again: bool = False, of_key: bool = False
) -> None:
    """Record declarations; those that are new, changed, refused before or to be put back wait to be applied.

    `of_key`: by a worker's key, which may not take what another pool declares.
    """
    # In one order, so that two code bases that start at once do not wait for each other.
    for spec in sorted(specs, key=lambda one: str(one["name"])):
        definition = {key: value for key, value in spec.items() if key not in ("name", "source")}
        fields = {"pool": pool, "source": str(spec.get("source") or "")[:200], "spec": definition}
        declaration, new = Declaration.objects.select_for_update().get_or_create(
            tenant=tenant, name=spec["name"], defaults={**fields, "of_key": of_key}
        )
        if of_key and declaration.pool_id != pool.pk:
            raise worker_keys.of_another_pool(declaration.name)
        present = {"pool": declaration.pool, "source": declaration.source, "spec": declaration.spec}
        settled = not declaration.error and not declaration.withdrawn_at
        if new or (present == fields and settled and not again):
            continue
        fresh = {"withdrawn_at": None, "applied_at": None, "error": "", "of_key": of_key}
        for name, value in {**fields, **fresh}.items():
            setattr(declaration, name, value)
        declaration.declared_at = database_now()
        declaration.save()


def withdraw(tenant: Tenant, pool: Pool, names: Sequence[str], *, of_key: bool = False) -> None:
    now = database_now()
    present = Declaration.objects.filter(tenant=tenant, pool=pool, name__in=names, withdrawn_at=None)
    present.update(withdrawn_at=now, declared_at=now, applied_at=None, error="", of_key=of_key)


def apply_now(tenant: Tenant, names: Sequence[str]) -> None:
    """Apply what was just declared or withdrawn; rows that others hold wait for a scheduler."""
    apply_declarations(len(names), only=Q(tenant=tenant, name__in=names))


def _apply(declaration: Declaration) -> None:
    if declaration.withdrawn_at is not None:
        _cancel(declaration)
    else:
        export(declaration.tenant, declaration.pool, declaration.spec)
        _create_or_edit(declaration)


def act_for_code(name: str, pool: Pool, act: Callable[[], None]) -> str:
    """Act for a code base in a savepoint; return the reason if it cannot be done, or an empty text."""
    with acting_for(pool):
        try:
            with transaction.atomic():
                act()
        except DomainError as refused:
            return hinted(str(refused), refused.hint)
        except TROUBLES:
            raise
        except Exception as error:
            logger.exception("%s fails", name)
            return f"it cannot be carried out: {type(error).__name__}"
    return ""


def acting_for(pool: Pool) -> AbstractContextManager[object]:
    """Act as the caller of the request, or else as the code base whose pool it is."""
    if current_actor().kind != ActorKind.SYSTEM:
        return nullcontext()
    return acting_as(ActorKind.WORKER, f"pool {pool.slug}")


def export(tenant: Tenant, pool: Pool, spec: Json) -> None:
    """Export the declared task from a team's own pool; in a pool of several teams an operator must do it."""
    target = spec.get("target")
    task = target.get("task") if isinstance(target, dict) else None
    if not isinstance(task, str) or is_reserved(task) or len(task) > MAX_TASK_LENGTH:
        return
    # Before the clock, and leaving alone those who refer to the pool while they hold one.
    locked = Pool.objects.select_for_update(no_key=True).get(pk=pool.pk)
    if task in locked.exported_tasks or not Pool.objects.open_to(tenant).filter(pk=pool.pk).exists():
        return
    if locked.shared or locked.tenants.exclude(pk=tenant.pk).exists():
        raise Conflict(
            f"the pool {pool.slug} does not export {task}, and is open to other teams",
            hint="an operator must add the task to what the pool exports; or declare it in a pool of your own",
        )
    pools.add_exported_tasks(locked, [task])


def _create_or_edit(declaration: Declaration) -> None:
    data = {**declaration.spec, "name": declaration.name, "pool": declaration.pool.slug}
    present = Job.objects.of(declaration.tenant)
    # Also under another name: a second job would run beside it.
    job = present.filter(declarations=declaration).first() or present.filter(name=declaration.name).first()
    if declaration.of_key:
        worker_keys.check(declaration.pool, data, lock(job) if job else None)
    if job is not None and job.status == JobStatus.CANCELLED:
        # What a person has cancelled stays so; what was withdrawn is made anew.
        if declaration.job_id == job.pk and declaration.applied is None:
            delete_job(job, "it is declared again")
            job = None
    job = create_job(declaration.tenant, data) if job is None else edit_job(job, data, whole=True)
    Declaration.objects.filter(pk=declaration.pk).update(job=job)
    # As the ledger reads it, so that both sides of a later comparison are read in one way.
    [applied] = declared(declaration.tenant, declaration.pool, [declaration.name])
    declaration.job, declaration.applied = job, applied.present


def _cancel(declaration: Declaration) -> None:
    job = Job.objects.of(declaration.tenant).filter(declarations=declaration).first()
    if job is not None:
        if declaration.of_key and lock(job).job.pool_id != declaration.pool_id:
            raise worker_keys.of_another_pool(job.name)
        # Of one that a person has cancelled already nothing changes, and it stays that person's.
        if job.status != JobStatus.CANCELLED:
            declaration.applied = None
        cancel_job(job, NO_LONGER_DECLARED)
