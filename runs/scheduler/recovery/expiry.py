"""Expire workers that kept silent for their lease. Never early: a worker that lives keeps its claims."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from runs.events import ExpiredWorker, WorkersExpired, WorkersHeld, emit
from runs.sql import Connection, change, rows

MASS_LOSS = 3
MASS_LOSS_SHARE = 0.2


class PresentWorker(NamedTuple):
    """A worker that has neither left nor been expired."""

    incarnation: UUID
    pool_id: int
    name: str
    last_beat_at: datetime
    held_until: datetime | None
    lease_seconds: float
    # Of one that came with a tenant's key.
    tenant_id: int | None

    @property
    def team(self) -> tuple[int, int | None]:
        """Return the key of a team: workers of one pool and for the same tenants fall silent together."""
        return self.pool_id, self.tenant_id

    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.lease_seconds)


def expire_workers(
    connection: Connection, last_beat: Callable[[PresentWorker], datetime], now: datetime
) -> tuple[int, int]:
    """Hold those that fell silent together for one more lease; expire the others. Their claims are lost then.

    Returns how many are newly held, and how many have expired.
    """
    present = [PresentWorker(*row) for row in rows(connection, "present_workers")]
    silent = [worker for worker in present if last_beat(worker) <= now - worker.lease]
    if not silent:
        return 0, 0
    held = _mass_loss(present, silent, now)
    fresh = [worker.incarnation for worker in held if worker.held_until is None]
    if fresh:
        change(connection, "hold_workers", {"now": now, "workers": fresh})
        emit(WorkersHeld(workers=fresh))
    kept = {worker.incarnation for worker in held}
    lost = [worker.incarnation for worker in silent if worker.incarnation not in kept]
    if not lost:
        return len(fresh), 0
    expired = rows(connection, "expire_workers", {"now": now, "workers": lost})
    emit(WorkersExpired(workers=[ExpiredWorker(*row) for row in expired]))
    return len(fresh), len(expired)


def _mass_loss(
    present: Iterable[PresentWorker], silent: Sequence[PresentWorker], now: datetime
) -> list[PresentWorker]:
    """Return those of a team that fell silent together, as after a network failure; no hold is renewed.

    Leases differ, as an idle worker's is longer: one that was not heard since the others fell silent may have fallen
    silent with them, and does not count among those that live.
    """
    beats: defaultdict[tuple[int, int | None], list[datetime]] = defaultdict(list)
    for worker in present:
        beats[worker.team].append(worker.last_beat_at)
    teams: defaultdict[tuple[int, int | None], list[PresentWorker]] = defaultdict(list)
    for worker in silent:
        teams[worker.team].append(worker)
    held = []
    for team, members in teams.items():
        newest = max(worker.last_beat_at for worker in members)
        together = [worker for worker in members if newest - worker.last_beat_at <= worker.lease]
        heard_since = sum(beat > newest for beat in beats[team])
        if len(together) >= MASS_LOSS and len(together) > MASS_LOSS_SHARE * (len(members) + heard_since):
            held += [worker for worker in together if worker.held_until is None or worker.held_until > now]
    return held
