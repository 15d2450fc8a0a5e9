"""Remember the living workers of a pool and the targets they know.

Only targets that the pool exports are read; whatever else a team's workers report is ignored.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from runs.sql import Connection, rows


@dataclass(slots=True)
class PoolWorkers:
    """The workers of a pool, kept from pass to pass: what a worker knows never changes, so it is read once."""

    nodes: frozenset[UUID] = frozenset()
    exported: frozenset[str] = frozenset()
    # By worker: the tenant whose runs alone it takes (None: everybody's), and the targets it knows.
    known: dict[UUID, tuple[int | None, frozenset[str]]] = field(default_factory=dict)
    # All of it by that tenant.
    targets: dict[int | None, set[str]] = field(default_factory=dict)
    # By tenant, those that only its own workers know.
    own_targets: dict[int, set[str]] = field(default_factory=dict)

    def see(self, connection: Connection, nodes: Collection[UUID], exported: Collection[str]) -> None:
        if self.exported != (exported := frozenset(exported)):
            self.known, self.nodes = {}, frozenset()
        if self.nodes != (nodes := frozenset(nodes)):
            self._learn(connection, nodes, exported)
            # At the end, so that the next pass repeats a read that failed.
            self.nodes, self.exported = nodes, exported

    def knows(self, tenant: int, target: str) -> bool:
        return any(target in self.targets.get(one, ()) for one in (None, tenant))

    def _learn(self, connection: Connection, nodes: frozenset[UUID], exported: frozenset[str]) -> None:
        known = {node: one for node, one in self.known.items() if node in nodes}
        # Most know the same.
        alike = {one: one for one in known.values()}
        values = {"nodes": list(nodes - known.keys()), "exported": list(exported)}
        for node, tenant, targets in rows(connection, "targets_of_workers", values):
            one = (tenant, frozenset(targets))
            known[node] = alike.setdefault(one, one)
        by_tenant: defaultdict[int | None, set[str]] = defaultdict(set)
        for tenant, names in set(known.values()):
            by_tenant[tenant] |= names
        self.known, self.targets = known, dict(by_tenant)
        for_all = self.targets.get(None, set())
        own = {tenant: names - for_all for tenant, names in self.targets.items() if tenant is not None}
        self.own_targets = {tenant: names for tenant, names in own.items() if names}
