"""Which stop a planned time or a run is under. Pure: trigger, dispatch, preview and the pages all decide by this."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from jobs.models import Effect, StopKind

LONGEST_REASON = 40
# Class of the advisory locks, one for each stop, at which visits and who changes the stop queue up.
STOP_QUEUE = 0x626B10
WORDS = {StopKind.PAUSE: "paused", StopKind.BLACKOUT: "blackout"}
# Whose effect a planned time has that several stops concern: what drops it, before what makes up for it.
SUSPENDING = (Effect.SKIP, Effect.RUN_AFTER, Effect.CATCH_UP)
HOLDING = (Effect.HOLD, Effect.CATCH_UP)


class StopRow(NamedTuple):
    """A stop as it is read. `over_at` is when it ended or will; None: nobody knows."""

    id: int
    kind: str
    effect: str
    tenant_id: int | None
    pool_id: int | None
    tag_name: str
    tag_value: str
    begins_at: datetime
    over_at: datetime | None
    note: str

    @property
    def word(self) -> str:
        return WORDS[StopKind(self.kind)]

    @property
    def reason(self) -> str:
        """As rows of runs, lanes and spans keep it."""
        text = f"{self.word}: {self.note}" if self.note else self.word
        return text if len(text) <= LONGEST_REASON else text[: LONGEST_REASON - 1] + "…"

    def concerns(self, tenant_id: int, pool_id: int, tags: Mapping[str, str]) -> bool:
        """All that it names must fit; one that names nothing concerns everything."""
        if self.tenant_id not in (None, tenant_id) or self.pool_id not in (None, pool_id):
            return False
        return not self.tag_name or (self.tag_name in tags and self.tag_value in ("", tags[self.tag_name]))

    def covers(self, instant: datetime) -> bool:
        return self.begins_at <= instant and (self.over_at is None or instant < self.over_at)


@dataclass(frozen=True, slots=True)
class Stops:
    """Oldest first; those that are settled are no longer among them."""

    rows: tuple[StopRow, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def need_tags(self) -> bool:
        """Whether a question is answered rightly only with the tags of the job."""
        return any(stop.tag_name for stop in self.rows)

    def suspends(
        self, tenant_id: int, pool_id: int, tags: Mapping[str, str], planned_at: datetime
    ) -> StopRow | None:
        """Why this planned time gets no run of its own."""
        found = [stop for stop in self.of(tenant_id, pool_id, tags, planned_at) if stop.effect in SUSPENDING]
        return min(found, key=lambda stop: SUSPENDING.index(Effect(stop.effect)), default=None)

    def holds(self, tenant_id: int, pool_id: int, tags: Mapping[str, str], now: datetime) -> StopRow | None:
        """Why nothing of it is handed over: of several the one that will last longest."""
        found = [stop for stop in self.of(tenant_id, pool_id, tags, now) if stop.effect in HOLDING]
        endless = next((stop for stop in found if stop.over_at is None), None)
        return endless or max(found, key=_over_at, default=None)

    def over(self, now: datetime) -> list[StopRow]:
        """Ended, and not yet settled."""
        return [stop for stop in self.rows if stop.over_at is not None and stop.over_at <= now]

    def of(
        self, tenant_id: int, pool_id: int, tags: Mapping[str, str], instant: datetime
    ) -> Iterator[StopRow]:
        """All in force then."""
        return (s for s in self.rows if s.covers(instant) and s.concerns(tenant_id, pool_id, tags))


def _over_at(stop: StopRow) -> datetime:
    assert stop.over_at is not None  # noqa: S101 - the endless one was taken before
    return stop.over_at
