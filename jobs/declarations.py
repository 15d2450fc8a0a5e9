"""Jobs declared by decorators in a team's code: applied through the same services as everybody's."""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import psycopg
from django.db import InterfaceError, OperationalError, connection, transaction
from django.db.models import Q

from auditlog.context import acting_as, current_actor
from auditlog.models import ActorKind
from jobs import platform, worker_reach
from jobs.database_clock import database_now
from jobs.input_checks import Json
from jobs.locked_job import lock
from jobs.models import Declaration, Job, JobStatus, Pool, Tenant
from jobs.refusals import Conflict, Refused, hinted
from jobs.services import cancel_job, create_job, delete_job, edit_job
from jobs.targets import is_reserved
from scheduler_project.sdk import plan
from scheduler_project.sdk.plan import Declared, Difference, drift_of
from scheduler_project.sdk.sql import statements

logger = logging.getLogger(__name__)

SQL = statements(Path(plan.__file__).with_name("code_base.sql"))
LONGEST_WAIT = "2s"
NO_LONGER_DECLARED = "it is no longer declared by its code base"
# The database's troubles are nobody's declaration's. Runs speak to it without Django's own errors in between.
TROUBLES = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)


class PutOff(Exception):
    """The declaration could not be applied in time: somebody holds what it changes."""


def apply_declarations(limit: int = 100, put_off: set[int] | None = None, only: Q | None = None) -> int:
    """Applies what is waiting, oldest first, each in its own transaction; returns how many were looked at.

    A declaration that cannot be applied keeps the reason on its row, where the worker that declared it reads it.
    One that waits for a lock is `put_off`, which ends the round; it is tried again when all others had their turn.
    """
    put_off = set() if put_off is None else put_off
    for applied in range(limit):
        try:
            if not _apply_next(put_off, only or Q()):
                put_off.clear()
                return applied
        except PutOff:
            return applied + 1
    return limit


@transaction.atomic
def _apply_next(put_off: set[int], only: Q) -> bool:
    limit_waiting()
    waiting = Declaration.objects.select_for_update(skip_locked=True, of=("self",)).filter(
        only, applied_at=None
    )
    # Without the spec: what cannot even be read is this declaration's error, and not everybody's.
    waiting = waiting.exclude(pk__in=put_off).select_related("tenant", "pool").defer("spec")
    declaration = waiting.order_by("declared_at", "id").first()
    if declaration is None:
        return False
    wish = f"the declaration {declaration.name} of {declaration.tenant.slug}"
    try:
        declaration.error = fulfil(wish, declaration.pool, partial(_apply, declaration))
    except (OperationalError, psycopg.OperationalError) as error:
        put_off.add(declaration.pk)
        logger.warning("the declaration %s is put off: %s", declaration, type(error).__name__)
        raise PutOff(PutOff.__doc__) from error
    declaration.applied_at = database_now()
    declaration.save(update_fields=["error", "applied_at", "job", "applied"])
    return True


def declared(tenant: Tenant, pool: Pool, names: Sequence[str] | None = None) -> list[Declared]:
    """Of the pool, or those of these names."""
    values = {"tenant": tenant.slug, "pool": pool.slug, "names": None if names is None else list(names)}
    with connection.cursor() as cursor:
        cursor.execute(SQL["declared"], values)
        columns = [column.name for column in cursor.description]
        return [Declared.read(_parsed(dict(zip(columns, row, strict=True)))) for row in cursor.fetchall()]


def _parsed(row: Json) -> Json:
    """Django hands out what a statement of ours finds in a column of JSON as text."""
    texts = {name: row[name] for name in ("spec", "applied", "present") if isinstance(row[name], str)}
    return {**row, **{name: json.loads(text) for name, text in texts.items()}}


def drift_of_job(job: Job) -> tuple[Declaration, list[Difference]] | None:
    """Where a declared job comes from, and what somebody changed by hand since. None: nobody declares it."""
    declaration = job.declarations.filter(withdrawn_at=None).select_related("tenant", "pool").first()
    if declaration is None:
        return None
    found = declared(declaration.tenant, declaration.pool, [declaration.name])
    return declaration, [difference for one in found for difference in drift_of(one) if not one.waiting]


@transaction.atomic
def declare(
    tenant: Tenant, pool: Pool, specs: Sequence[Json], *, again: bool = False, of_key: bool = False
) -> None:
    """Waits to be applied when it says something new, was refused, or shall be put back as it was declared.

    `of_key`: a worker's key says so, which may not take what another pool declares.
    """
    # In one order, so that two code bases that start at once do not wait for each other.
    for spec in sorted(specs, key=lambda one: str(one["name"])):
        said = {key: value for key, value in spec.items() if key not in ("name", "source")}
        fields = {"pool": pool, "source": str(spec.get("source") or "")[:200], "spec": said}
        declaration, new = Declaration.objects.select_for_update().get_or_create(
            tenant=tenant, name=spec["name"], defaults={**fields, "of_key": of_key}
        )
        if of_key and declaration.pool_id != pool.pk:
            raise worker_reach.of_another_pool(declaration.name)
        present = {"pool": declaration.pool, "source": declaration.source, "spec": declaration.spec}
        if new or (
            present == fields and not declaration.error and not declaration.withdrawn_at and not again
        ):
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
    """What was just declared or withdrawn; what is held by somebody else waits for a scheduler."""
    apply_declarations(len(names), only=Q(tenant=tenant, name__in=names))


def limit_waiting() -> None:
    """Whoever applies declarations has other things to do."""
    with connection.cursor() as cursor:
        for limit in ("lock_timeout", "statement_timeout"):
            cursor.execute(f"SET LOCAL {limit} = '{LONGEST_WAIT}'")


def _apply(declaration: Declaration) -> None:
    if declaration.withdrawn_at is not None:
        _cancel(declaration)
    else:
        export(declaration.tenant, declaration.pool, declaration.spec)
        _create_or_edit(declaration)


def fulfil(wish: str, pool: Pool, act: Callable[[], None]) -> str:
    """Returns why not, or nothing. What cannot be done for a code base changes nothing, and holds nobody else up."""
    with acting_for(pool):
        try:
            with transaction.atomic():
                act()
        except Refused as refused:
            return hinted(str(refused), refused.hint)
        except TROUBLES:
            raise
        except Exception as error:
            logger.exception("%s fails", wish)
            return f"it cannot be carried out: {type(error).__name__}"
    return ""


def acting_for(pool: Pool) -> AbstractContextManager[object]:
    """As the key that asks for it, or else as the code base whose pool it is."""
    if current_actor().kind == ActorKind.KEY:
        return nullcontext()
    return acting_as(ActorKind.WORKER, f"pool {pool.slug}")


def export(tenant: Tenant, pool: Pool, spec: Json) -> None:
    """What the workers of a team's own pool declare, they can run. What many may call, an operator decides."""
    target = spec.get("target")
    task = target.get("task") if isinstance(target, dict) else None
    if not isinstance(task, str) or is_reserved(task) or len(task) > 200:
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
    before = platform.facts(locked)
    locked.exported_tasks = sorted([*locked.exported_tasks, task])
    locked.save(update_fields=["exported_tasks"])
    platform.record_saved(locked, before)


def _create_or_edit(declaration: Declaration) -> None:
    data = {**declaration.spec, "name": declaration.name, "pool": declaration.pool.slug}
    job = _job_of(declaration)
    if declaration.of_key:
        worker_reach.check(declaration.pool, data, lock(job) if job else None)
    if job is not None and _was_withdrawn(declaration, job):
        delete_job(job, "it is declared again")
        job = None
    job = create_job(declaration.tenant, data) if job is None else edit_job(job, data, whole=True)
    declaration.job, declaration.applied = job, _as_applied(declaration, job)


def _job_of(declaration: Declaration) -> Job | None:
    """The one it made, also if somebody has renamed it: a second one would run beside it."""
    present = Job.objects.of(declaration.tenant)
    made = present.filter(declarations=declaration).first()
    return made or present.filter(name=declaration.name).first()


def _was_withdrawn(declaration: Declaration, job: Job) -> bool:
    """Cancelled because it was not declared any more. What a person has cancelled stays so."""
    return job.status == JobStatus.CANCELLED and declaration.job_id == job.pk and declaration.applied is None


def _cancel(declaration: Declaration) -> None:
    job = Job.objects.of(declaration.tenant).filter(declarations=declaration).first()
    if job is not None:
        if declaration.of_key and lock(job).job.pool_id != declaration.pool_id:
            raise worker_reach.of_another_pool(job.name)
        # Of one that a person has cancelled already nothing changes, and it stays that person's.
        if job.status != JobStatus.CANCELLED:
            declaration.applied = None
        cancel_job(job, NO_LONGER_DECLARED)


def _as_applied(declaration: Declaration, job: Job) -> Json | None:
    """As the ledger reads it, so that both sides of a later comparison are read in one way."""
    Declaration.objects.filter(pk=declaration.pk).update(job=job)
    return next(iter(declared(declaration.tenant, declaration.pool, [declaration.name]))).present
