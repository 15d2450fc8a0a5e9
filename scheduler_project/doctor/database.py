"""Check PostgreSQL: it answers, its tables are ours, it keeps what it acknowledges, and nothing blocks it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.conf import settings
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import DatabaseError

from runs.scheduler.partitions import lock_session as slices
from scheduler_project import schema_history
from scheduler_project.doctor.findings import Findings, age, counted, fine, fine_unless_found, note, problem
from scheduler_project.sdk.ledger import clock_skew
from scheduler_project.sdk.ledger.clock_skew import RoundTrip
from scheduler_project.standalone.state import kept_settings

MIN_VERSION = 14
LONG_TRANSACTION_SECONDS = 300
NTP = "let both take their time from NTP; planned times follow the database's clock"
MAX_STATEMENT_TIME = "30s"


def reachable() -> Findings:
    started = time.monotonic()
    try:
        connection.ensure_connection()
        major = connection.cursor().connection.info.server_version // 10_000
    except DatabaseError as error:
        where, why = address_of(settings.DATABASE_URL), first_line(error)
        do = "run `make up`" if is_of_make_up() else "start PostgreSQL, or correct DATABASE_URL"
        yield problem(f"the database at {where} does not answer: {why}", do)
        return
    milliseconds = (time.monotonic() - started) * 1000
    yield fine(f"PostgreSQL {major} at {address_of(settings.DATABASE_URL)} answers in {milliseconds:.0f} ms")
    if major < MIN_VERSION:
        yield problem(f"PostgreSQL {major} is too old", f"upgrade to PostgreSQL {MIN_VERSION} or newer")


def is_reachable() -> bool:
    with suppress(DatabaseError):
        connection.ensure_connection()
        return True
    return False


def is_of_make_up() -> bool:
    """Say whether the database is the one that `make up` of this checkout starts."""
    with suppress(OSError):
        return kept_settings(settings.BASE_DIR).get("DATABASE_URL") == settings.DATABASE_URL
    return False


def migrations() -> Findings:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        names = some([f"{migration.app_label}.{migration.name}" for migration, _ in plan])
        missing = counted(len(plan), "migration is", "migrations are")
        yield problem(f"{missing} not applied: {names}", "run `manage.py migrate`")
    applied = executor.loader.applied_migrations or {}
    unknown = sorted(set(applied) - set(executor.loader.graph.nodes))
    ours = [f"{app}.{name}" for app, name in unknown if app.startswith("beatkeeper_")]
    if foreign := schema_history.foreign_migrations(applied):
        yield problem(
            f"this database cannot be used: {schema_history.describe(foreign)}",
            "set DATABASE_URL to an empty database, or move the state folder of `make up` away",
        )
    elif ours:
        yield note(f"the database is newer than this code: {', '.join(ours)}", "upgrade this machine as well")
    if not plan and not ours:
        yield fine("all migrations are applied")


def durability() -> Findings:
    for name in ("fsync", "full_page_writes", "synchronous_commit"):
        if setting(name) == "off":
            yield problem(
                f"{name} is off: what was acknowledged can be lost in a crash",
                f"set {name} = on in postgresql.conf and reload",
            )
    if not setting("synchronous_standby_names"):
        yield note(
            "no synchronous standby: with the loss of this database's disk the last moments are lost too",
            "set synchronous_standby_names once there is a standby",
        )
    else:
        yield fine("commits wait for a synchronous standby")


def pooler() -> Findings:
    """Check for a transaction pooler, which shares the session locks of a scheduler with everybody."""
    url = settings.DATABASE_DIRECT_URL
    try:
        slices.refuse_transaction_pooler(url)
    except slices.TransactionPooler:
        yield problem(
            f"a transaction pooler stands between the schedulers and the database ({address_of(url)}):"
            " locks taken through it exclude nobody",
            "set DATABASE_DIRECT_URL to PostgreSQL itself; DATABASE_URL may stay with the pooler",
        )
    except psycopg.Error as error:
        yield problem(
            f"DATABASE_DIRECT_URL at {address_of(url)} does not answer: {first_line(error)}",
            "correct DATABASE_DIRECT_URL: schedulers connect by it",
        )
    else:
        yield fine("no transaction pooler stands before the schedulers")


@fine_unless_found("no transaction is older than 5 minutes")
def long_transactions() -> Findings:
    for pid, user, application, state, seconds in rows(
        "SELECT pid, usename, coalesce(nullif(application_name, ''), 'unnamed'), state,"
        " extract(epoch FROM now() - xact_start)::float8 FROM pg_stat_activity"
        " WHERE xact_start < now() - make_interval(secs => %s) AND backend_type = 'client backend'"
        "   AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 5",
        [LONG_TRANSACTION_SECONDS],
    ):
        yield problem(
            f"a transaction of {user} ({application}, {state}) is open for {age(seconds)}:"
            " as long as it lasts, no table can be cleaned and every pass gets slower",
            f"end it: SELECT pg_terminate_backend({pid})",
        )
    for (gid,) in rows(
        "SELECT gid FROM pg_prepared_xacts WHERE prepared < now() - make_interval(secs => %s) LIMIT 5",
        [LONG_TRANSACTION_SECONDS],
    ):
        yield problem(f"the prepared transaction {gid} is left over", f"end it: ROLLBACK PREPARED '{gid}'")
    for (name,) in rows(
        "SELECT slot_name FROM pg_replication_slots"
        " WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL) LIMIT 5"
    ):
        yield problem(
            f"the replication slot {name} has no consumer and holds back cleaning",
            f"start its consumer, or drop it: SELECT pg_drop_replication_slot('{name}')",
        )


def clock() -> Findings:
    round_trip = RoundTrip()
    ((theirs,),) = rows("SELECT clock_timestamp()")
    skew_ms = round_trip.skew_ms(theirs)
    if skew_ms is None:
        yield note("the database answers too slowly to compare this machine's clock with its own")
    elif abs(skew_ms) <= clock_skew.LIMIT_MS:
        yield fine(f"this machine's clock and the database's differ by {abs(skew_ms):.0f} ms")
    else:
        yield problem(f"this machine's clock is {clock_skew.describe(skew_ms)}", NTP)


def setting(name: str) -> str:
    ((value,),) = rows("SELECT current_setting(%s, true)", [name])
    return str(value or "")


def rows(query: str, parameters: list[Any] | dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """Run a query in a short transaction, so that its time limit does not stay in a pooled connection."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, true) WHERE current_setting('statement_timeout') = '0'",
            [MAX_STATEMENT_TIME],
        )
        cursor.execute(query, parameters or [])
        return list(cursor.fetchall())


def address_of(url: str) -> str:
    """Return host, port and name of a URL, never its password."""
    parts = urlsplit(url)
    if "@" in parts.path + parts.fragment or "@" in parts.query.partition("=")[0]:
        # The password has a character that ends the host's part of the URL.
        return "an address that is not to be shown"
    return f"{parts.netloc.rpartition('@')[2] or 'the local socket'}{parts.path}"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def some(names: Sequence[object]) -> str:
    """List three names, and count the others."""
    return ", ".join(map(str, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
