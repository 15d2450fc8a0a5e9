"""Whether anybody can run a target: what the workers of a pool have told that they know.

A pool's exports say what may run there, its workers what can. A typo that is exported, or a task whose code is gone,
is found when the job is written down, if there is a live worker to ask; if there is none, it is said and not refused.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from auditlog.context import current_actor
from auditlog.models import ActorKind
from jobs import signals
from jobs.input_checks import Json, listed, near, refused
from jobs.models import Pool, Tenant
from jobs.targets import is_reserved, target_key

KIND = "kind:"


@dataclass(frozen=True)
class KnownTargets:
    """Of the live workers; with none living, of those that were there last."""

    live: bool
    names: frozenset[str]

    @property
    def tasks(self) -> list[str]:
        return sorted(name for name in self.names if not name.startswith(KIND))


NOBODY = KnownTargets(False, frozenset())


def known_in(pool: Pool, tenant: Tenant | None = None) -> KnownTargets:
    """As far as the workers run for this tenant; without one, all of them."""
    answers: list[tuple[Any, Any]] = signals.known_targets_asked.send(Pool, pool=pool, tenant=tenant)
    return next((answer for _, answer in answers if isinstance(answer, KnownTargets)), NOBODY)


def check_known(target: Json, pool: Pool, tenant: Tenant) -> None:
    """Refuses what no live worker knows. A worker that declares a job knows it, and may register only then."""
    if current_actor().kind == ActorKind.WORKER:
        return
    known = known_in(pool, tenant)
    if known.live and target_key(target) not in known.names:
        field = "target.task" if target["kind"] == "celery" else "target.kind"
        raise refused(field, _unknown(target, pool), _hint(target, pool, known.tasks), "unknown_target")


def warning(target: Json, pool: Pool, tenant: Tenant) -> str:
    """Empty, if a live worker knows it. A job is asked about like this whenever it is looked at."""
    known = known_in(pool, tenant)
    if known.live and target_key(target) in known.names:
        return ""
    alone = "" if known.live else ": none is alive"
    hint = "" if target_key(target) in known.names else _hint(target, pool, known.tasks)
    return _unknown(target, pool) + alone + (f"; {hint}" if hint else "")


def _unknown(target: Json, pool: Pool) -> str:
    what = f"the task {target['task'][:200]}" if target["kind"] == "celery" else f"{target['kind']} targets"
    return f"no live worker of the pool {pool.slug} knows {what}"


def _hint(target: Json, pool: Pool, tasks: Iterable[str]) -> str:
    """Only what the pool exports is anybody's to know."""
    if target["kind"] != "celery":
        return ""
    exported = [task for task in tasks if task in pool.exported_tasks and not is_reserved(task)]
    return near(target["task"], exported) or listed(exported, "they know") or ""
