"""What a shipped statement costs, asked of PostgreSQL through the driver the product uses."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from tests.support.waiting import wait_until

Values = Mapping[str, Any] | Sequence[Any]
# psycopg would prepare after five executions and PostgreSQL may change to a generic plan after five more.
EXECUTIONS = 12


@dataclass(frozen=True)
class Cost:
    rows: int
    buffers: int
    locks: int
    partitions: frozenset[str]
    scans: frozenset[str]
    # By table, the rows that its scans read, also those that a filter then left out.
    read: Mapping[str, int] = field(default_factory=dict)

    @property
    def buffers_per_row(self) -> float:
        return self.buffers / max(1, self.rows)


def cost_of(
    connection: psycopg.Connection[Any],
    statement: str,
    values: Values,
    *,
    rows_written_by: str = "",
) -> Cost:
    """Return the dearest of twelve executions, each rolled back; rows are returned, or written by the named node."""
    # The first one steps over what other tests wrote and rolled back, and marks it as dead.
    _once(connection, statement, values, rows_written_by)
    costs = [_once(connection, statement, values, rows_written_by) for _ in range(EXECUTIONS)]
    return max(costs, key=lambda cost: cost.buffers)


def settle(connection: psycopg.Connection[Any], table: str) -> None:
    """As after a quiet hour: what was just written is on pages that all may read without asking.

    VACUUM leaves out what anybody's snapshot, such as that of an automatic ANALYZE, may not see yet.
    """

    def all_visible() -> bool:
        connection.execute(f"VACUUM (ANALYZE, INDEX_CLEANUP ON) {table}")
        pages = "SELECT relallvisible >= relpages FROM pg_class WHERE oid = %s::regclass"
        return connection.execute(pages, [table]).fetchall() == [(True,)]

    wait_until(all_visible, 30, f"{table} to be visible to all")


def _once(connection: psycopg.Connection[Any], statement: str, values: Values, rows_written_by: str) -> Cost:
    with connection.transaction(force_rollback=True), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement}", values)
        plan = cursor.fetchone()[0][0]["Plan"]  # type: ignore[index]
        cursor.execute(
            "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
            " AND relation <> 'pg_locks'::regclass"
        )
        locks = cursor.fetchone()[0]  # type: ignore[index]
    nodes = list(_nodes(plan))
    touched = [node for node in nodes if node["Actual Loops"]]
    return Cost(
        rows=_rows(nodes, rows_written_by),
        buffers=plan["Shared Hit Blocks"] + plan["Shared Read Blocks"],
        locks=locks,
        partitions=frozenset(
            node["Relation Name"] for node in touched if _is_partition(node.get("Relation Name", ""))
        ),
        scans=frozenset(
            f"{node['Node Type']} on {node['Relation Name']}" for node in touched if "Relation Name" in node
        ),
        read=_rows_read(touched),
    )


def _rows(nodes: list[dict[str, Any]], written_by: str) -> int:
    if not written_by:
        return int(nodes[0]["Actual Rows"] * nodes[0]["Actual Loops"])
    children = [node for node in nodes if node.get("Subplan Name") == f"CTE {written_by}"]
    return int(children[0]["Actual Rows"])


def _rows_read(nodes: list[dict[str, Any]]) -> Mapping[str, int]:
    read: Counter[str] = Counter()
    for node in nodes:
        if "Relation Name" in node:
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read[node["Relation Name"]] += round(rows * node["Actual Loops"])
    return read


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def _is_partition(name: str) -> bool:
    return name.rsplit("_", 1)[-1].isdigit()
