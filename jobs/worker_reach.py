"""What a worker's key may write down: tasks for its own pool, with no secret that its runs are not given anyway.

The key lies on a machine that need not be the platform's. Whoever takes it there must not get at the tenant's other
pools with it, nor at all its secrets by naming them.
"""

from jobs.input_checks import Json, refused
from jobs.locked_job import LockedJob
from jobs.models import Pool
from jobs.refusals import Conflict
from scheduler_project.sdk.references import names_in

HINT = "do this with an administrator's key, such as by `beatkeeper apply`"


def check(pool: Pool, spec: Json, present: LockedJob | None) -> None:
    """Of a job that is there the caller has the lock: nobody moves it to another pool meanwhile."""
    if present is not None and present.job.pool_id != pool.pk:
        raise of_another_pool(present.job.name)
    target = spec.get("target")
    kind = target.get("kind") if isinstance(target, dict) else None
    if kind not in (None, "celery"):
        raise refused("target.kind", "a worker's key declares Celery tasks alone", HINT, "not_for_workers")
    check_secrets(spec, "target", present.spec.secret_names if present else ())


def check_kind(kind: str) -> None:
    """Of a job whose run is asked for."""
    if kind != "celery":
        why = (
            f"the job has a target of the kind {kind}, and a worker's key asks for runs of Celery tasks alone"
        )
        hint = "ask for it with an operator's or an administrator's key"
        raise refused("spec.name", why, hint, "not_for_workers")


def check_secrets(given: object, field: str, known: tuple[str, ...] | list[str]) -> None:
    """Whether a secret of another name is there is not said."""
    if beyond := sorted(set(names_in(given)) - set(known)):
        why = f"the job does not refer to the secret {beyond[0][:60]}, and a worker's key cannot change that"
        raise refused(field, why, HINT, "not_for_workers")


def of_another_pool(name: str) -> Conflict:
    return Conflict(f"the job {name} is of another pool", field="name", hint=HINT)
