"""Slices are shared out fairly, and whoever is stopped, hung or cut off loses its own within seconds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest

from runs.scheduler.partitions import lock_session as slices
from runs.scheduler.partitions.lock_session import (
    JOBS,
    POOLS,
    LockSession,
    LostLocks,
    TransactionPooler,
    connect,
    refuse_transaction_pooler,
)
from runs.scheduler.partitions.slices import SliceSet
from tests.races.staging import dsn, meanwhile
from tests.support.waiting import wait_until

Open = Callable[..., LockSession]


@pytest.fixture
def open_session(db: None) -> Iterator[Open]:
    with ExitStack() as sessions:
        yield lambda seconds=30.0: sessions.enter_context(LockSession(dsn(), "test", seconds))


def settle(*sets: SliceSet) -> list[int]:
    """As their loops do it: each looks around a few times."""
    for _ in range(3):
        for one in sets:
            one.balance()
    return [len(one.held) for one in sets]


def test_one_scheduler_holds_every_slice(open_session: Open) -> None:
    assert settle(SliceSet(open_session(), JOBS, range(64))) == [64]


def test_schedulers_that_come_later_get_their_fair_share(open_session: Open) -> None:
    first = SliceSet(open_session(), JOBS, range(64))
    assert settle(first) == [64]
    second = SliceSet(open_session(), JOBS, range(64))
    assert settle(first, second) == [32, 32]
    third = SliceSet(open_session(), JOBS, range(64))
    assert sorted(settle(first, second, third)) == [20, 22, 22]
    assert first.held | second.held | third.held == set(range(64))
    assert not first.held & second.held


def test_slices_of_a_scheduler_that_ended_are_taken_over(open_session: Open) -> None:
    first, second = (SliceSet(open_session(), JOBS, range(64)) for _ in range(2))
    settle(first, second)
    first.session.close()
    wait_until(lambda: settle(second) == [64], 15, "the locks of a closed session")


def test_a_share_is_taken_and_given_back_in_one_statement_each(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that joins a large installation holds nothing up by hundreds of round trips."""
    first, second = (open_session() for _ in range(2))
    asked: list[str] = []
    execute: Any = psycopg.Connection.execute

    def counted(self: Any, query: Any, *values: Any) -> Any:
        asked.append(query)
        return execute(self, query, *values)

    one, other = SliceSet(first, JOBS, range(64)), SliceSet(second, JOBS, range(64))
    one.balance()
    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    other.balance()
    one.balance()
    other.balance()
    assert len(one.held) == len(other.held) == 32
    # Each counts the members; the first gives back, the second takes, in vain before.
    assert len(asked) <= 6


def test_slices_above_the_share_and_pools_that_are_gone_go_back_together(open_session: Open) -> None:
    pools = SliceSet(open_session(), POOLS, range(10))
    settle(pools)
    other = SliceSet(open_session(), POOLS, range(5, 15))
    pools.universe = set(range(5, 15))
    settle(pools, other)
    assert len(pools.held) == len(other.held) == 5
    assert pools.held | other.held == set(range(5, 15))


def test_an_idle_session_loses_its_slices(open_session: Open) -> None:
    """A scheduler stopped by SIGSTOP looks like this to PostgreSQL."""
    stopped = SliceSet(open_session(seconds=0.5), JOBS, range(64))
    settle(stopped)
    living = SliceSet(open_session(), JOBS, range(64))
    wait_until(lambda: settle(living) == [64], 15, "the slices of a stopped scheduler")
    with pytest.raises(psycopg.OperationalError):
        stopped.balance()


def test_kinds_do_not_mix(open_session: Open) -> None:
    jobs, pools = SliceSet(open_session(), JOBS, [1, 2]), SliceSet(open_session(), POOLS, [1, 2])
    assert settle(jobs, pools) == [2, 2]


def test_a_pool_that_was_removed_is_given_back(open_session: Open) -> None:
    pools = SliceSet(open_session(), POOLS, [1, 2, 3])
    settle(pools)
    pools.universe = {2, 4}
    settle(pools)
    assert pools.held == {2, 4}


def test_fewer_slices_than_schedulers_leave_some_empty_handed(open_session: Open) -> None:
    sets = [SliceSet(open_session(), POOLS, [7]) for _ in range(3)]
    assert sorted(settle(*sets)) == [0, 0, 1]


def test_a_slice_that_is_not_held_cannot_be_given_back(open_session: Open) -> None:
    with pytest.raises(LostLocks):
        open_session().give_back(JOBS, [1])


def test_a_wait_for_a_mute_server_can_be_cut_off(open_session: Open) -> None:
    # The server goes on sleeping for as long as a statement may take.
    session = open_session(seconds=3.0)

    def wait_for_ever() -> None:
        session.connection.execute("SELECT pg_sleep(30)")

    with meanwhile(wait_for_ever) as waiting:
        wait_until(waiting.running, what="the thread")
        session.cut()
        with pytest.raises(psycopg.OperationalError):
            waiting.result(timeout=5)


def test_no_statement_and_no_lock_is_waited_for_longer_than_seconds(db: None) -> None:
    with connect(dsn(), "test", 0.2) as connection, pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("SELECT pg_sleep(30)")


def test_what_the_url_sets_is_kept_but_for_what_a_session_needs(db: None) -> None:
    url = psycopg.conninfo.make_conninfo(dsn(), options="-c search_path=shop -c statement_timeout=0")
    with connect(url, "test", 4.0) as connection:
        (names,) = connection.execute(
            "SELECT current_setting('search_path'), current_setting('statement_timeout')"
        )
    assert names == ("shop", "4s")


def test_a_direct_connection_is_accepted(db: None) -> None:
    refuse_transaction_pooler(dsn())


def test_a_transaction_pooler_is_refused(pooled_database_url: str) -> None:
    with pytest.raises(TransactionPooler):
        refuse_transaction_pooler(pooled_database_url)


def test_a_pooler_that_comes_to_stand_in_between_later_is_noticed_by_each_session(
    pooled_database_url: str,
) -> None:
    with pytest.raises((TransactionPooler, psycopg.OperationalError)):
        LockSession(pooled_database_url, "test")


def test_a_session_that_is_not_what_it_says_is_looked_at(
    open_session: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a pooler that lets our options through."""

    def refuse(dsn: str) -> None:
        raise TransactionPooler

    monkeypatch.setattr(slices, "refuse_transaction_pooler", refuse)
    open_session()
    monkeypatch.setattr(slices, "backend_pid", lambda connection: 1)
    with pytest.raises(TransactionPooler, match="Set it to PostgreSQL itself"):
        open_session()
