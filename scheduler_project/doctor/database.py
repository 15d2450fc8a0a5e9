"""PostgreSQL: is it there, is it ours, will it keep what it acknowledged, and does anything hold it up."""

import time
from typing import Any
from urllib.parse import urlsplit

import psycopg
from django.conf import settings
from django.db import connection, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.utils import DatabaseError

from runs import slices
from scheduler_project.doctor.findings import Finding, Findings, age, counted, fine, note, problem
from scheduler_project.sdk import clock_skew
from scheduler_project.sdk.clock_skew import RoundTrip

OLDEST_VERSION = 14
LONG_TRANSACTION_SECONDS = 300
NTP = "let both take their time from NTP; planned times follow the database's clock"
SLOWEST_STATEMENT = "30s"


def reachable() -> Findings:
    started = time.monotonic()
    try:
        connection.ensure_connection()
        major = connection.cursor().connection.info.server_version // 10_000
    except DatabaseError as error:
        where, why = address_of(settings.DATABASE_URL), first_line(error)
        yield problem(
            f"the database at {where} does not answer: {why}", "start PostgreSQL, or correct DATABASE_URL"
        )
        return
    milliseconds = (time.monotonic() - started) * 1000
    yield fine(f"PostgreSQL {major} at {address_of(settings.DATABASE_URL)} answers in {milliseconds:.0f} ms")
    if major < OLDEST_VERSION:
        yield problem(f"PostgreSQL {major} is too old", f"upgrade to PostgreSQL {OLDEST_VERSION} or newer")


def is_reachable() -> bool:
    try:
        connection.ensure_connection()
    except DatabaseError:
        return False
    return True


def migrations() -> Findings:
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    if plan:
        names = ", ".join(f"{migration.app_label}.{migration.name}" for migration, _ in plan[:3])
        more = f" and {len(plan) - 3} more" if len(plan) > 3 else ""
        yield problem(
            f"{counted(len(plan), 'migration is', 'migrations are')} not applied: {names}{more}",
            "run `manage.py migrate`",
        )
    unknown = sorted(set(executor.loader.applied_migrations or {}) - set(executor.loader.graph.nodes))
    ours = [f"{app}.{name}" for app, name in unknown if app.startswith("beatkeeper_")]
    if ours:
        yield note(f"the database is newer than this code: {', '.join(ours)}", "upgrade this machine as well")
    if not plan and not ours:
        yield fine("all migrations are applied")


def is_migrated() -> bool:
    return "beatkeeper_worker_node" in connection.introspection.table_names()


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
    """Schedulers hold session locks, which a transaction pooler gives to everybody at once."""
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


def long_transactions() -> Findings:
    found = False
    for finding in [*_open_transactions(), *_prepared_transactions(), *_replication_slots()]:
        found = True
        yield finding
    if not found:
        yield fine("no transaction is older than 5 minutes")


def _open_transactions() -> list[Finding]:
    lines = []
    for pid, user, application, state, seconds in rows(
        "SELECT pid, usename, coalesce(nullif(application_name, ''), 'unnamed'), state,"
        " extract(epoch FROM now() - xact_start)::float8 FROM pg_stat_activity"
        " WHERE xact_start < now() - make_interval(secs => %s) AND backend_type = 'client backend'"
        "   AND datname = current_database() AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 5",
        [LONG_TRANSACTION_SECONDS],
    ):
        lines.append(
            problem(
                f"a transaction of {user} ({application}, {state}) is open for {age(seconds)}:"
                " as long as it lasts, no table can be cleaned and every pass gets slower",
                f"end it: SELECT pg_terminate_backend({pid})",
            )
        )
    return lines


def _prepared_transactions() -> list[Finding]:
    return [
        problem(f"the prepared transaction {gid} is forgotten", f"end it: ROLLBACK PREPARED '{gid}'")
        for (gid,) in rows(
            "SELECT gid FROM pg_prepared_xacts WHERE prepared < now() - make_interval(secs => %s) LIMIT 5",
            [LONG_TRANSACTION_SECONDS],
        )
    ]


def _replication_slots() -> list[Finding]:
    return [
        problem(
            f"the replication slot {name} has no consumer and holds back cleaning",
            f"start its consumer, or drop it: SELECT pg_drop_replication_slot('{name}')",
        )
        for (name,) in rows(
            "SELECT slot_name FROM pg_replication_slots"
            " WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL) LIMIT 5"
        )
    ]


def clock() -> Findings:
    asked = RoundTrip()
    ((theirs,),) = rows("SELECT clock_timestamp()")
    skew_ms = asked.skew_ms(theirs)
    if skew_ms is None:
        yield note("the database answers too slowly to compare this machine's clock with its own")
    elif abs(skew_ms) <= clock_skew.LIMIT_MS:
        yield fine(f"this machine's clock and the database's differ by {abs(skew_ms):.0f} ms")
    else:
        yield problem(f"this machine's clock is {clock_skew.in_words(skew_ms)}", NTP)


def setting(name: str) -> str:
    ((value,),) = rows("SELECT current_setting(%s, true)", [name])
    return str(value or "")


def rows(query: str, parameters: list[Any] | dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
    """One short transaction, so that the limit of its time does not stay behind in a pooled connection."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('statement_timeout', %s, true) WHERE current_setting('statement_timeout') = '0'",
            [SLOWEST_STATEMENT],
        )
        cursor.execute(query, parameters or [])
        return list(cursor.fetchall())


def address_of(url: str) -> str:
    """Host, port and name of a URL; never its password."""
    parts = urlsplit(url)
    if "@" in parts.path + parts.fragment or "@" in parts.query.partition("=")[0]:
        # A password with a character that ends the host's part.
        return "an address that is not to be shown"
    return f"{parts.netloc.rpartition('@')[2] or 'the local socket'}{parts.path}"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
