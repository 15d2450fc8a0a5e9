"""The WAL of one database, which the server writes into one stream with that of all others."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from tests.benchmarks.stage import Database

# A commit names no relation; it belongs to the database whose blocks its transaction changed.
OF_DATABASE = """
WITH record AS MATERIALIZED (
    SELECT xid::text AS xid, record_length AS bytes, fpi_length AS page_bytes,
           coalesce(block_ref LIKE %(blocks)s, false) AS ours, coalesce(block_ref, '') = '' AS names_no_block
    FROM pg_get_wal_records_info(%(begin)s, pg_current_wal_flush_lsn())
)
SELECT sum(bytes)::float8, sum(page_bytes)::float8 FROM record
WHERE ours OR names_no_block AND xid IN (SELECT xid FROM record WHERE ours AND xid <> '0')
"""
SLOT = "bench_wal"


def wal_meter(database: Database) -> Callable[[], dict[str, Any]]:
    """Begin to count; return what says the bytes since, once.

    They are of this database alone if the server can tell them apart, or else all that it wrote.
    """
    with suppress(psycopg.Error):
        database.session.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        # The slot keeps what is read at the end from being removed; it ends with the session at the latest.
        database.session.execute(
            "SELECT pg_create_physical_replication_slot(%s, true, true)", [slot(database)]
        )
    begin = database.value("SELECT pg_current_wal_flush_lsn()")

    def written() -> dict[str, Any]:
        try:
            return _of_database(database, begin)
        except psycopg.Error:
            total = database.value("SELECT pg_current_wal_flush_lsn() - %s::pg_lsn", [begin])
            return {"of": "server", "bytes": float(total)}
        finally:
            with suppress(psycopg.Error):
                database.session.execute("SELECT pg_drop_replication_slot(%s)", [slot(database)])

    return written


def slot(database: Database) -> str:
    return f"{SLOT}_{database.session.info.backend_pid}"


def _of_database(database: Database, begin: str) -> dict[str, Any]:
    """Count whole pages too: the first change of a page after a checkpoint costs one."""
    number = database.value("SELECT oid FROM pg_database WHERE datname = current_database()")
    [(total, pages)] = database.rows(OF_DATABASE, {"begin": begin, "blocks": f"%/{number}/%"})
    return {"of": "database", "bytes": total or 0.0, "page_bytes": pages or 0.0}
