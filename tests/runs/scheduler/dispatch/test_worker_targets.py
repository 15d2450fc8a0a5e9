"""What dispatch knows of a pool's workers, and when it asks again."""

from uuid import UUID, uuid4

import pytest
from psycopg.errors import QueryCanceled

from runs.scheduler.dispatch import worker_targets as pool_workers
from runs.scheduler.dispatch.worker_targets import PoolWorkers

ONE, TWO = 1, 2


class Table:
    """Of workers and what they know; asked in place of the database's."""

    def __init__(self) -> None:
        self.known: dict[UUID, tuple[int | None, set[str]]] = {}
        self.asked: list[set[UUID]] = []
        self.is_slow = False

    def rows(
        self, _connection: object, _name: str, values: dict[str, list[object]]
    ) -> list[tuple[object, ...]]:
        nodes = {node for node in values["nodes"] if isinstance(node, UUID)}
        self.asked.append(nodes)
        if self.is_slow:
            raise QueryCanceled
        return [(node, self.known[node][0], self.known[node][1] & set(values["exported"])) for node in nodes]

    def worker(self, tenant: int | None, *targets: str) -> UUID:
        node = uuid4()
        self.known[node] = tenant, set(targets)
        return node


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Table:
    table = Table()
    monkeypatch.setattr(pool_workers, "rows", table.rows)
    return table


def see(workers: PoolWorkers, nodes: set[UUID], exported: set[str]) -> None:
    workers.see(None, nodes, exported)  # type: ignore[arg-type]


def test_each_worker_is_asked_of_once(table: Table) -> None:
    workers, one, two = PoolWorkers(), table.worker(None, "a"), table.worker(ONE, "a", "b")
    for nodes in ({one}, {one}, {one, two}, {two}):
        see(workers, nodes, {"a", "b"})
    assert table.asked == [{one}, {two}, set()]
    assert workers.knows(ONE, "a") and workers.knows(ONE, "b") and not workers.knows(TWO, "a")


def test_what_was_not_heard_is_asked_again(table: Table) -> None:
    """Else all runs of the pool were of targets that nobody knows, until some worker comes or goes."""
    workers, one = PoolWorkers(), table.worker(None, "a")
    table.is_slow = True
    with pytest.raises(QueryCanceled):
        see(workers, {one}, {"a"})
    assert not workers.knows(ONE, "a")
    table.is_slow = False
    see(workers, {one}, {"a"})
    assert workers.knows(ONE, "a") and table.asked == [{one}, {one}]


def test_all_are_asked_again_when_the_pool_exports_something_else(table: Table) -> None:
    workers, one = PoolWorkers(), table.worker(None, "a", "b")
    see(workers, {one}, {"a"})
    assert not workers.knows(ONE, "b")
    see(workers, {one}, {"a", "b"})
    assert workers.knows(ONE, "b") and table.asked == [{one}, {one}]


def test_what_others_know_as_well_is_no_team_s_own(table: Table) -> None:
    workers, nodes = (
        PoolWorkers(),
        {table.worker(None, "a"), table.worker(ONE, "a", "b"), table.worker(TWO, "a")},
    )
    see(workers, nodes, {"a", "b"})
    assert workers.own_targets == {ONE: {"b"}}
