"""Find the queues of a pool that have ready runs, and the first of each (decision 20)."""

from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from runs.scheduler.full_looks import FullLooks
from runs.sql import Connection, array, rows

# Rank and id of a run. Before every run of a queue, and the last of all ids.
Place = tuple[int, str]
BEGINNING: Place = (-(2**63), str(UUID(int=0)))
LAST_ID = str(UUID(int=2**128 - 1))
# Of more queues than this, only those with ready runs are remembered.
MAX_QUEUES = 10_000


@dataclass(slots=True)
class ReadyQueues:
    """Where the ready runs of each queue begin: at the first that a pass found there, or later.

    Runs that come before it, as those that go back, are found by the next full look.
    """

    looks: FullLooks = field(default_factory=FullLooks)
    first: dict[int, Place] = field(default_factory=dict)

    def look(self, connection: Connection, pool: int) -> set[int]:
        began = monotonic()
        full = self.looks.are_due(began)
        if full:
            found = rows(connection, "queues_with_ready_runs", {"pool": pool})
            self.looks.note(began, monotonic() - began)
        else:
            ranks, ids = zip(*self.first.values(), strict=True) if self.first else ((), ())
            known = {"tenants": list(self.first), "ranks": array(ranks), "ids": array(ids)}
            found = rows(connection, "queues_known_with_ready_runs", {"pool": pool, **known})
        firsts = {tenant: (rank, run) for tenant, rank, run in found}
        self.first = firsts if full and len(self.first) > MAX_QUEUES else self.first | firsts
        return set(firsts)

    def put_back(self, tenant: int, rank: int) -> None:
        """Note that runs of this rank and later ones are ready again."""
        self.first[tenant] = min(self.first.get(tenant, BEGINNING), (rank, BEGINNING[1]))

    def before_first(self, tenant: int) -> Place:
        """Return a place such that all runs behind it are those from the first on."""
        rank, run = self.first.get(tenant, BEGINNING)
        return (rank - 1, LAST_ID) if rank > BEGINNING[0] else BEGINNING
