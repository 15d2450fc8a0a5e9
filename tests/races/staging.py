"""Races are staged: one connection holds a row, the other acts, then we look who waited and what changed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from django.db import connection, connections, transaction
from psycopg.rows import dict_row

from tests.support.waiting import wait_until

T = TypeVar("T")
Session = psycopg.Connection[Any]


def dsn() -> str:
    """Name the test database for a connection of the test's own."""
    parameters = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    return " ".join(f"{name}={parameters[name]}" for name in names if parameters.get(name))


@contextmanager
def second_connection() -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(dsn(), row_factory=dict_row, prepare_threshold=None) as other:
        yield other


@contextmanager
def held_open() -> Iterator[psycopg.Connection[Any]]:
    """Leave what this thread does inside uncommitted until the block ends, or until it is told to COMMIT."""
    with transaction.atomic():
        yield connection.connection


@contextmanager
def meanwhile(action: Callable[[], T]) -> Iterator["Future[T]"]:
    """Run the action in a thread; its result is awaited when the other side has let go."""

    def act() -> T:
        try:
            return action()
        finally:
            # This thread's own: left open they would keep the test database from being dropped.
            connections.close_all()

    with ThreadPoolExecutor(max_workers=1) as thread:
        yield thread.submit(act)


@contextmanager
def waiting_for(holder: psycopg.Connection[Any], action: Callable[[], T]) -> Iterator["Future[T]"]:
    """Begin once the action stands behind a lock of the holder: the interleaving is reached, not hoped for."""
    pid = holder.info.backend_pid

    def waits(watcher: psycopg.Connection[Any]) -> bool:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
        return bool(watcher.execute(waiting, [pid]).fetchone()[0])  # type: ignore[index]

    with meanwhile(action) as acting:
        # On a connection of its own: inside a transaction the view would stand still.
        with psycopg.connect(dsn(), autocommit=True) as watcher:
            wait_until(lambda: waits(watcher), what="another connection to wait for ours")
        yield acting


def result_after(holder: psycopg.Connection[Any], action: Callable[[], T], how: str = "COMMIT") -> T:
    """End the holder's transaction once the action waits for it, and return the action's result."""
    with waiting_for(holder, action) as acting:
        holder.execute(how)
        return acting.result(timeout=60)
