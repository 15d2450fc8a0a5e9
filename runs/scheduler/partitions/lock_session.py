"""Hold session advisory locks, which say who owns which slice of the work.

Locks only divide the work; the run's key makes a time fire once. A scheduler that is stopped, hung or cut off loses its
slices within seconds: its lock session is the one it works on, and PostgreSQL ends a session that is idle, waiting or
unreachable for longer than a few seconds.
"""

import logging
import os
import socket
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

logger = logging.getLogger(__name__)

JOBS = 0x626B01
POOLS = 0x626B02
RECOVERY = 0x626B03
CELERY = 0x626B04
# A member of a kind holds this shared lock for as long as it lives; members are counted in pg_locks.
MEMBER = 0x10000

# No statement may take longer. A loop speaks several times a second: one that is silent for three quarters of
# that is stopped, hung or cut off, and others wait for what it holds.
SESSION_SECONDS = 4
SILENCE = 0.75
PROBES = 5


class LostLocks(Exception):
    """This session is not the one that took the locks."""


def refuse_other_session(found: int, expected: int | None) -> None:
    """Raise if a statement ran on another session than the one that took the locks."""
    if expected is not None and found != expected:
        raise LostLocks(LostLocks.__doc__)


class TransactionPooler(Exception):
    """DATABASE_DIRECT_URL leads through a transaction pooler, where the session locks of a scheduler exclude nobody.

    Set it to PostgreSQL itself; DATABASE_URL may stay with the pooler.
    """

    def __str__(self) -> str:
        return " ".join(str(self.__doc__).split())


class LockSession:
    """A raw connection that holds locks and runs the loop's transactions; only that loop's thread uses it."""

    def __init__(self, dsn: str, name: str, seconds: float = SESSION_SECONDS) -> None:
        self.connection = connect(dsn, name, seconds)
        self.pid = backend_pid(self.connection)
        if self.pid != self.connection.info.backend_pid:
            # It came to stand in between since the start, or nobody could ask at the start.
            with self.connection:
                refuse_transaction_pooler(dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()

    def cut(self) -> None:
        """End a wait for a server that does not answer. No other method may be called by another thread."""
        try:
            with socket.socket(fileno=os.dup(self.connection.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            logger.debug("the session was closed already")

    def take(self, kind: int, keys: Sequence[int], most: int) -> set[int]:
        """Take as many of the keys as are free, in their order, in one round trip."""
        found = self.connection.execute(
            "SELECT key FROM unnest(%s::int[]) AS wanted (key) WHERE pg_try_advisory_lock(%s, key) LIMIT %s",
            [list(keys), kind, most],
        ).fetchall()
        return {key for (key,) in found}

    def give_back(self, kind: int, keys: Collection[int]) -> None:
        missing = self.connection.execute(
            "SELECT key FROM unnest(%s::int[]) AS held (key) WHERE NOT pg_advisory_unlock(%s, key)",
            [list(keys), kind],
        ).fetchall()
        if missing:
            raise LostLocks(f"{LostLocks.__doc__} It did not hold {kind:x}/{missing[0][0]}.")

    def join(self, kind: int) -> None:
        self.connection.execute("SELECT pg_advisory_lock_shared(%s, %s)", [kind + MEMBER, 0])

    def members(self, kind: int) -> int:
        counted = self.connection.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = 0"
            " AND objsubid = 2 AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            [kind + MEMBER],
        ).fetchall()
        return int(counted[0][0])


def connect(dsn: str, name: str, seconds: float = SESSION_SECONDS) -> psycopg.Connection[Any]:
    limit, quiet = int(seconds * 1000), int(seconds * SILENCE * 1000)
    server_side = {
        "timezone": "UTC",
        "idle_session_timeout": quiet,
        "idle_in_transaction_session_timeout": quiet,
        "statement_timeout": limit,
        "lock_timeout": limit // 2,
        "tcp_user_timeout": quiet,
        "tcp_keepalives_idle": 2,
        "tcp_keepalives_interval": 1,
        "tcp_keepalives_count": 3,
        "plan_cache_mode": "force_custom_plan",
        "synchronous_commit": "on",
        "jit": "off",
        # What loops read is in memory: a probe for each of some thousand rows beats reading a whole table.
        "random_page_cost": "1.1",
        # An index scan takes note of entries that are dead, so that the next one does not read them again; a bitmap
        # scan reads what has passed through a state since the last vacuum, over and over.
        "enable_bitmapscan": "off",
    }
    return psycopg.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,
        application_name=name,
        connect_timeout=max(2, int(seconds)),
        tcp_user_timeout=quiet,
        keepalives_idle=2,
        keepalives_interval=1,
        keepalives_count=3,
        options=options_of(dsn, server_side),
    )


def options_of(dsn: str, ours: Mapping[str, object]) -> str:
    """Join the URL's own options, such as a search_path, with ours, which come last and so count."""
    given = conninfo_to_dict(dsn).get("options")
    return " ".join([*([str(given)] if given else []), *(f"-c {key}={value}" for key, value in ours.items())])


def backend_pid(connection: psycopg.Connection[Any]) -> int:
    return int(connection.execute("SELECT pg_backend_pid()").fetchall()[0][0])


def refuse_transaction_pooler(dsn: str) -> None:
    """Raise if a transaction pooler stands between us and PostgreSQL.

    Two clients of one meet on one server session as soon as one of them holds a transaction open.
    """
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=None, connect_timeout=5) as one:
        if one.info.backend_pid == backend_pid(one):
            return
        logger.warning("DATABASE_DIRECT_URL leads through a pooler; schedulers want PostgreSQL itself")
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None, connect_timeout=5) as other:
            for _ in range(PROBES):
                before = backend_pid(one)
                with other.transaction():
                    taken = backend_pid(other)
                    if taken == before or backend_pid(one) != before:
                        raise TransactionPooler
