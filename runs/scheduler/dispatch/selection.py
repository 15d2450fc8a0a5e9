"""Select which of the best ready runs go now, in the order of their ranks; dispatch marks them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from runs.reasons import Reason
from runs.sql import Connection, rows


class Candidate(NamedTuple):
    """A ready run among the best of its queue, locked, with its row's place (ctid), which stays until it is marked."""

    ctid: str
    tenant_id: int
    rank: int
    target_key: str
    # Its job, if that has a limit.
    limited: UUID | None
    # The reason for which it may not go, if its job or its job's breaker holds it.
    held_by: str | None
    # Read only while a suspension names a tag or a job.
    job_id: UUID | None
    tags: str | None
    # As text, which the driver reads faster: most are never looked at.
    id: str


class Gates:
    """The locked gates of the jobs in question, and what is occupied behind them."""

    def __init__(self, connection: Connection, jobs: Collection[UUID]) -> None:
        wanted = {"jobs": sorted(jobs)}
        self.limits: dict[UUID, int] = dict(rows(connection, "lock_gates", wanted)) if jobs else {}
        # Another session holds these gates: their runs wait for the next pass.
        self.busy = set(jobs) - set(self.limits)
        held = {"jobs": list(self.limits)}
        self.occupied: dict[UUID, int] = dict(rows(connection, "occupied_gates", held)) if self.limits else {}

    def take_place(self, job: UUID) -> bool:
        """Count one more run of the job, and return whether its limit had room."""
        occupied = self.occupied.get(job, 0)
        if occupied >= self.limits[job]:
            return False
        self.occupied[job] = occupied + 1
        return True


@dataclass(slots=True)
class Chosen:
    going: list[Candidate] = field(default_factory=list)
    # Why runs may not go, by where their rows lie.
    blocked: dict[str, str] = field(default_factory=dict)
    # By tenant: how many go, and how many of them only its own workers know.
    handed: Counter[int] = field(default_factory=Counter)
    to_own: Counter[int] = field(default_factory=Counter)
    # By tenant: how many may not go, or not yet.
    left_behind: Counter[int] = field(default_factory=Counter)
    # Tenants of which runs were left because only their own workers know them.
    kept_to_own: set[int] = field(default_factory=set)


def choose(
    candidates: Sequence[Candidate],
    reasons: Mapping[str, str],
    given: Counter[int],
    own: Counter[int],
    own_targets: Mapping[int, Collection[str]],
    gates: Gates,
) -> Chosen:
    """Choose as many runs of each queue as it was given.

    Of runs that only the tenant's own workers know no more are chosen than these have room for: before the slots of all
    tenants they would keep places that nobody there can free.
    """
    chosen = Chosen(blocked=dict(reasons))
    for run in candidates:
        tenant = run.tenant_id
        only_own = run.target_key in own_targets.get(tenant, ())
        if run.ctid in reasons or run.limited in gates.busy:
            chosen.left_behind[tenant] += 1
        elif only_own and chosen.to_own[tenant] >= own[tenant]:
            chosen.left_behind[tenant] += 1
            chosen.kept_to_own.add(tenant)
        elif chosen.handed[tenant] >= given[tenant]:
            continue
        elif run.limited is None or gates.take_place(run.limited):
            chosen.going.append(run)
            chosen.handed[tenant] += 1
            chosen.to_own[tenant] += only_own
        else:
            chosen.blocked[run.ctid] = Reason.CONCURRENCY
            chosen.left_behind[tenant] += 1
    return chosen
