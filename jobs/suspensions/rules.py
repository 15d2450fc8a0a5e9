"""Decide which suspension concerns a planned time or a run. Pure: trigger, dispatch, previews and pages share it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple
from uuid import UUID

from jobs.models import Effect, SuspensionKind

MAX_REASON_LENGTH = 40
# Class of the advisory locks, one per suspension, at which trigger decisions and changes of the suspension queue up.
SUSPENSION_LOCK = 0x626B10
WORDS = {SuspensionKind.PAUSE: "paused", SuspensionKind.BLACKOUT: "blackout"}
# If several suspensions concern a planned time, the first effect of these counts: dropping goes before catching up.
SUSPENDING = (Effect.SKIP, Effect.RUN_AFTER, Effect.CATCH_UP)
HOLDING = (Effect.HOLD, Effect.CATCH_UP)
FOREVER = datetime.max.replace(tzinfo=timezone.utc)


class SuspensionRow(NamedTuple):
    """Hold a suspension as the scheduler reads it. `over_at` is when it ended or will end; None if that is open."""

    id: int
    kind: str
    effect: str
    tenant_id: int | None
    pool_id: int | None
    job_id: UUID | None
    tag_name: str
    tag_value: str
    begins_at: datetime
    over_at: datetime | None
    reason: str
    public_id: UUID = UUID(int=0)

    @property
    def word(self) -> str:
        return WORDS[SuspensionKind(self.kind)]

    @property
    def stored_reason(self) -> str:
        """Say why runs, queues and spans are suspended, in the length that their rows store."""
        text = f"{self.word}: {self.reason}" if self.reason else self.word
        return text if len(text) <= MAX_REASON_LENGTH else text[: MAX_REASON_LENGTH - 1] + "…"

    def concerns(self, tenant_id: int, pool_id: int, job_id: UUID | None, tags: Mapping[str, str]) -> bool:
        """Match a job against all that the suspension names. One that names nothing matches every job.

        Without a job's id and tags, tell whether it concerns the whole queue.
        """
        if self.tenant_id not in (None, tenant_id) or self.pool_id not in (None, pool_id):
            return False
        if self.job_id not in (None, job_id):
            return False
        return not self.tag_name or (self.tag_name in tags and self.tag_value in ("", tags[self.tag_name]))

    def covers(self, instant: datetime) -> bool:
        return self.begins_at <= instant and (self.over_at is None or instant < self.over_at)


@dataclass(frozen=True, slots=True)
class SuspensionSet:
    """Hold the suspensions that are not settled, oldest first."""

    rows: tuple[SuspensionRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def need_tags(self) -> bool:
        """Say whether the tags of a job must be read to decide."""
        return any(row.tag_name for row in self.rows)

    @property
    def need_jobs(self) -> bool:
        """Say whether the runs of a queue must be told apart by their jobs to decide."""
        return any(row.tag_name or row.job_id for row in self.rows)

    def suspends(
        self, tenant_id: int, pool_id: int, job_id: UUID | None, tags: Mapping[str, str], planned_at: datetime
    ) -> SuspensionRow | None:
        """Return the suspension because of which this planned time gets no run of its own."""
        found = [
            row for row in self.of(tenant_id, pool_id, job_id, tags, planned_at) if row.effect in SUSPENDING
        ]
        return min(found, key=lambda row: SUSPENDING.index(Effect(row.effect)), default=None)

    def holds(
        self, tenant_id: int, pool_id: int, job_id: UUID | None, tags: Mapping[str, str], now: datetime
    ) -> SuspensionRow | None:
        """Return the suspension that holds the job's runs; of several, the one that lasts longest."""
        found = [row for row in self.of(tenant_id, pool_id, job_id, tags, now) if row.effect in HOLDING]
        return max(found, key=lambda row: row.over_at or FOREVER, default=None)

    def over(self, now: datetime) -> list[SuspensionRow]:
        """Return those that have ended and are not settled."""
        return [row for row in self.rows if row.over_at is not None and row.over_at <= now]

    def of(
        self, tenant_id: int, pool_id: int, job_id: UUID | None, tags: Mapping[str, str], instant: datetime
    ) -> Iterator[SuspensionRow]:
        """Yield those in force at the instant that concern the job."""
        in_force = (row for row in self.rows if row.covers(instant))
        return (row for row in in_force if row.concerns(tenant_id, pool_id, job_id, tags))
