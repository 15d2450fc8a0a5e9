"""Find out whether the workers of a pool can run a target.

A pool's exports say what may run there, its workers report what can. An exported typo, or a task whose code is gone,
is refused when the job is saved, provided that a worker is alive; otherwise the job is saved with a warning.
"""

from auditlog.context import current_actor
from auditlog.models import ActorKind
from jobs.hooks import KnownTargets, job_hooks
from jobs.models import Pool, Tenant
from jobs.spec.targets import kind_of
from jobs.validation.checks import Json, invalid


def known_in(pool: Pool, tenant: Tenant | None = None) -> KnownTargets:
    """List what the workers of a pool know, as far as they run for this tenant; without one, all of them."""
    return job_hooks().known_targets(pool, tenant)


def check_known(target: Json, pool: Pool, tenant: Tenant) -> None:
    """Refuse a target that no live worker knows."""
    # A worker declares its jobs before it registers what it knows.
    if current_actor().kind == ActorKind.WORKER:
        return
    kind = kind_of(target)
    if job_hooks().is_known(kind.key(target), pool, tenant):
        return
    known = known_in(pool, tenant)
    if known.live:
        hint = kind.suggest(target, known.tasks, pool)
        raise invalid(kind.exported_field, _unknown(target, pool), hint, "unknown_target")


def warning(target: Json, pool: Pool, tenant: Tenant) -> str:
    """Describe why no live worker can run a target; return an empty text if one can."""
    kind = kind_of(target)
    if job_hooks().is_known(kind.key(target), pool, tenant):
        return ""
    known = known_in(pool, tenant)
    alone = "" if known.live else ": none is alive"
    hint = "" if kind.key(target) in known.names else kind.suggest(target, known.tasks, pool)
    return _unknown(target, pool) + alone + (f"; {hint}" if hint else "")


def _unknown(target: Json, pool: Pool) -> str:
    return f"no live worker of the pool {pool.slug} knows {kind_of(target).describe(target)}"
