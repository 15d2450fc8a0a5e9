"""Let runs take part in changes of jobs. It registers its hooks (runs/job_hooks.py); jobs never imports it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from jobs.models import Job, JobVersion, Pool, Tenant

KIND_PREFIX = "kind:"


@dataclass(frozen=True)
class TakenInstant:
    """The run that a planned time has."""

    run_id: str
    state: str


@dataclass(frozen=True)
class Missed:
    """Planned times without a run: their number, the first, the last, and the runs that the policy makes for them."""

    count: int
    # False: there are more than are counted.
    exact: bool
    first_at: datetime
    last_at: datetime
    policy: str
    runs: int


@dataclass(frozen=True)
class KnownTargets:
    """Keys of targets that the living workers of a pool know; with none alive, those of the latest ones."""

    live: bool
    names: frozenset[str]

    @property
    def tasks(self) -> list[str]:
        return sorted(name for name in self.names if not name.startswith(KIND_PREFIX))


class JobHooks(Protocol):
    """What runs does and answers inside the transaction that changes a job. The caller holds the job's clock."""

    def settle_due(self, job: Job, now: datetime) -> None:
        """Trigger what is due by now under the present schedule."""

    def taken_instant(self, job: Job, at: datetime) -> TakenInstant | None:
        """Find the run of a planned time."""

    def missed_until(self, job: Job, at: datetime) -> datetime | None:
        """Find the end of the recorded missed times in which an instant lies."""

    def settle_missed(
        self, spec: JobVersion, begins_at: datetime, ends_at: datetime, reason: str, policy: str | None
    ) -> Missed:
        """Record that no time of [begins_at, ends_at) was triggered, and catch up by this policy or the job's own."""

    def foresee_missed(
        self, spec: JobVersion, begins_at: datetime, ends_at: datetime, policy: str | None
    ) -> Missed:
        """Answer what `settle_missed` would do, without doing it."""

    def is_known(self, target_key: str, pool: Pool, tenant: Tenant) -> bool:
        """Test whether a living worker of the pool that runs for the tenant knows a target."""

    def known_targets(self, pool: Pool, tenant: Tenant | None) -> KnownTargets:
        """List what the workers of a pool know, as far as they run for the tenant; None stands for every tenant."""

    def held_jobs(self) -> QuerySet[Any, UUID]:
        """Select the ids of the jobs whose breakers hold their runs."""

    def version_written(self, job: Job, spec: JobVersion) -> None:
        """Follow a new version: gate, breaker and catch-up under way."""

    def job_ended(self, job: Job, now: datetime, reason: str) -> None:
        """End what is unfinished of a job that is cancelled or deleted."""


_registered: JobHooks | None = None


def register(hooks: JobHooks) -> None:
    global _registered  # noqa: PLW0603 - set once, when the apps are loaded
    _registered = hooks


def job_hooks() -> JobHooks:
    if _registered is None:
        raise LookupError("nobody has registered hooks of jobs: is runs among the installed apps?")
    return _registered
