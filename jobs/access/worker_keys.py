"""Limit what a worker's key may declare: tasks of its own pool, with no secret that its runs do not get anyway.

The key is stored on a machine that may not be the platform's. Someone who steals it there must not reach the tenant's
other pools with it, nor all its secrets by naming them.
"""

from jobs.errors import Conflict
from jobs.models import Pool
from jobs.services.locking import LockedJob
from jobs.validation.checks import Json, invalid
from scheduler_project.sdk.secret_values.references import names_in

HINT = "do this with an administrator's key, such as by `beatkeeper apply`"


def check(pool: Pool, spec: Json, present: LockedJob | None) -> None:
    """Check a declared job; the caller holds the lock of the present one, so it cannot move to another pool."""
    if present is not None and present.job.pool_id != pool.pk:
        raise of_another_pool(present.job.name)
    target = spec.get("target")
    kind = target.get("kind") if isinstance(target, dict) else None
    if kind not in (None, "celery"):
        raise invalid("target.kind", "a worker's key declares Celery tasks alone", HINT, "not_for_workers")
    check_secrets(spec, "target", present.spec.secret_names if present else ())


def check_kind(kind: str) -> None:
    """Check the kind of a job whose run is requested."""
    if kind != "celery":
        alone = "and a worker's key asks for runs of Celery tasks alone"
        why = f"the job has a target of the kind {kind}, {alone}"
        hint = "ask for it with an operator's or an administrator's key"
        raise invalid("spec.name", why, hint, "not_for_workers")


def check_secrets(given: object, field: str, known: tuple[str, ...] | list[str]) -> None:
    """Refuse references to other secrets than the job's. Whether such a secret exists is not revealed."""
    if beyond := sorted(set(names_in(given)) - set(known)):
        why = f"the job does not refer to the secret {beyond[0][:60]}, and a worker's key cannot change that"
        raise invalid(field, why, HINT, "not_for_workers")


def of_another_pool(name: str) -> Conflict:
    return Conflict(f"the job {name} is of another pool", field="name", hint=HINT)
