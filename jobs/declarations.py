"""Jobs declared by decorators in a team's code: applied through the same services as everybody's."""

import logging

import psycopg
from django.db import InterfaceError, OperationalError, connection, transaction

from auditlog.context import acting_as
from auditlog.models import ActorKind
from jobs import platform
from jobs.database_clock import database_now
from jobs.input_checks import Json
from jobs.models import Declaration, Job, Pool, Tenant
from jobs.refusals import Conflict, Refused
from jobs.services import create_job, edit_job
from jobs.targets import is_reserved

logger = logging.getLogger(__name__)

LONGEST_WAIT = "2s"
# The database's troubles are nobody's declaration's. Runs speak to it without Django's own errors in between.
TROUBLES = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)


class PutOff(Exception):
    """The declaration could not be applied in time: somebody holds what it changes."""


def apply_declarations(limit: int = 100, put_off: set[int] | None = None) -> int:
    """Applies what is waiting, oldest first, each in its own transaction; returns how many were looked at.

    A declaration that cannot be applied keeps the reason on its row, where the worker that declared it reads it.
    One that waits for a lock is `put_off`, which ends the round; it is tried again when all others had their turn.
    """
    put_off = set() if put_off is None else put_off
    for applied in range(limit):
        try:
            if not _apply_next(put_off):
                put_off.clear()
                return applied
        except PutOff:
            return applied + 1
    return limit


@transaction.atomic
def _apply_next(put_off: set[int]) -> bool:
    _limit_waiting()
    waiting = Declaration.objects.select_for_update(skip_locked=True, of=("self",)).filter(applied_at=None)
    # Without the spec: what cannot even be read is this declaration's error, and not everybody's.
    waiting = waiting.exclude(pk__in=put_off).select_related("tenant", "pool").defer("spec")
    declaration = waiting.order_by("declared_at", "id").first()
    if declaration is None:
        return False
    try:
        declaration.error = _apply(declaration)
    except (OperationalError, psycopg.OperationalError) as error:
        put_off.add(declaration.pk)
        logger.warning("the declaration %s is put off: %s", declaration, type(error).__name__)
        raise PutOff(PutOff.__doc__) from error
    declaration.applied_at = database_now()
    declaration.save(update_fields=["error", "applied_at"])
    return True


def _limit_waiting() -> None:
    """Whoever applies declarations has other things to do."""
    with connection.cursor() as cursor:
        for limit in ("lock_timeout", "statement_timeout"):
            cursor.execute(f"SET LOCAL {limit} = '{LONGEST_WAIT}'")


def _apply(declaration: Declaration) -> str:
    """Why not, or nothing. A declaration that cannot be applied changes nothing else, and holds nobody up."""
    with acting_as(ActorKind.WORKER, f"pool {declaration.pool.slug}"):
        try:
            with transaction.atomic():
                _export(declaration.tenant, declaration.pool, declaration.spec)
                _create_or_edit(declaration)
        except Refused as refused:
            return str(refused) + (f" ({refused.hint})" if refused.hint else "")
        except TROUBLES:
            raise
        except Exception as error:
            logger.exception("the declaration %s of %s fails", declaration.name, declaration.tenant.slug)
            return f"it cannot be applied: {type(error).__name__}"
    return ""


def _export(tenant: Tenant, pool: Pool, spec: Json) -> None:
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
    job = Job.objects.of(declaration.tenant).filter(name=declaration.name).first()
    if job is None:
        create_job(declaration.tenant, data)
    else:
        edit_job(job, data, whole=True)
