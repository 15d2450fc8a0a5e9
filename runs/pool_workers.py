"""What dispatch knows of the living workers of a pool: who they are, and the targets they name, as far as the pool
exports them; of what else a team's workers say they know nothing is read.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from runs.queries import Connection, rows


@dataclass(slots=True)
class PoolWorkers:
    """Kept from pass to pass: what a worker knows never changes, so of each it is read once."""

    nodes: frozenset[UUID] = frozenset()
    exported: frozenset[str] = frozenset()
    # Of each of them, and for whose runs alone; None: for everybody's.
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
            # At the end, so that what was not heard is asked again by the next pass.
            self.nodes, self.exported = nodes, exported

    def knows(self, tenant: int, target: str) -> bool:
        return any(target in self.targets.get(one, ()) for one in (None, tenant))

    def _learn(self, connection: Connection, nodes: frozenset[UUID], exported: frozenset[str]) -> None:
        known = {node: one for node, one in self.known.items() if node in nodes}
        # Most know the same.
        alike = {one: one for one in known.values()}
        values = {"nodes": list(nodes - known.keys()), "exported": list(exported)}
        for node, tenant, targets in rows(connection, "targets_of_nodes", values):
            one = (tenant, frozenset(targets))
            known[node] = alike.setdefault(one, one)
        by_tenant: defaultdict[int | None, set[str]] = defaultdict(set)
        for tenant, names in set(known.values()):
            by_tenant[tenant] |= names
        self.known, self.targets, self.own_targets = known, dict(by_tenant), _own(by_tenant)


def _own(targets: dict[int | None, set[str]]) -> dict[int, set[str]]:
    for_all = targets.get(None, set())
    own = {tenant: known - for_all for tenant, known in targets.items() if tenant is not None}
    return {tenant: known for tenant, known in own.items() if known}
