"""Find the queues of a pool that have ready runs, and the first of each (decision 20)."""

from dataclasses import dataclass, field
from time import monotonic
from uuid import UUID

from runs.scheduler.scan_pace import QUICK_SECONDS, ScanPace
from runs.sql import Connection, array, rows

# Rank and id of a run.
Place = tuple[int, str]
# Before every run of a queue.
BEGINNING: Place = (-(2**63), str(UUID(int=0)))
# Of more queues than this, only those with ready runs are remembered.
MAX_QUEUES = 10_000


@dataclass(slots=True)
class ReadyQueues:
    """Where the ready runs of each queue begin: at the first that a pass found there, or later.

    Runs that come before it, such as those given back, are found by the next scan from the beginning.
    """

    pace: ScanPace = field(default_factory=ScanPace)
    first: dict[int, Place] = field(default_factory=dict)
    # How long it took to look at the known queues alone, when that was last done.
    known_seconds: float = 0.0

    def is_due(self, at: float) -> bool:
        """Return whether to scan from the beginning: always, while that is quick or takes less than the alternative."""
        return self.pace.is_due(at) or self.pace.seconds <= max(QUICK_SECONDS, self.known_seconds)

    def look(self, connection: Connection, pool: int) -> set[int]:
        """Return the tenants with ready runs, and remember the first run of each."""
        began = monotonic()
        full = self.is_due(began)
        if full:
            try:
                found = rows(connection, "queues_with_ready_runs", {"pool": pool})
            finally:
                # Also if it was cut off: then a pass that begins elsewhere follows.
                self.pace.note(monotonic(), monotonic() - began)
        else:
            ranks, ids = zip(*self.first.values(), strict=True) if self.first else ((), ())
            known = {"tenants": list(self.first), "ranks": array(ranks), "ids": array(ids)}
            found = rows(connection, "queues_known_with_ready_runs", {"pool": pool, **known})
            self.known_seconds = monotonic() - began
        firsts = {tenant: (rank, run) for tenant, rank, run in found}
        self.first = firsts if full and len(self.first) > MAX_QUEUES else self.first | firsts
        return set(firsts)

    def put_back(self, tenant: int, rank: int) -> None:
        """Note that runs of this rank and later ones are ready again."""
        self.first[tenant] = min(self.first.get(tenant, BEGINNING), (rank, BEGINNING[1]))

    def before_first(self, tenant: int) -> Place:
        """Return the last place before the first run."""
        rank, run = self.first.get(tenant, BEGINNING)
        return (rank, str(UUID(int=max(0, UUID(run).int - 1))))
