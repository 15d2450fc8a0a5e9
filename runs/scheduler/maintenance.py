"""Keep the tables in shape once a day, in the scheduler that recovers; partitions also when a scheduler starts."""

import logging
import threading
from datetime import datetime, timedelta

import psycopg
from django.conf import settings

from runs.scheduler import day_partitions
from runs.sql import Connection, change

logger = logging.getLogger(__name__)

NODES_KEPT = timedelta(days=1)
REQUESTS_KEPT = timedelta(days=30)
# A statement that began before the minute was over may still wait for its row.
ALLOWANCES_KEPT = timedelta(minutes=5)
ANALYZE_SECONDS = 600


def keep_partitions(connection: Connection, now: datetime) -> None:
    """Make the partitions of the hot period and of the days ahead, and alarm if too few days are covered."""
    with connection.transaction(), psycopg.Cursor(connection) as cursor:
        made = day_partitions.ensure(
            cursor, now.date(), settings.HOT_PERIOD_DAYS, settings.PARTITIONS_AHEAD_DAYS
        )
        covered = day_partitions.coverage(cursor, now.date())
    if made:
        logger.info("made %d partitions, the last is %s", len(made), made[-1])
    for coverage in covered:
        if coverage.days_ahead < day_partitions.ALARM_BELOW_DAYS:
            logger.critical(
                "ALARM: the partitions of %s reach only %d days ahead", coverage.table, coverage.days_ahead
            )


def purge(connection: Connection, now: datetime) -> dict[str, int]:
    """Delete old rows and return how many by statement; decided dead letters as their runs leave the hot period."""
    kept = {
        "purge_workers": NODES_KEPT,
        "purge_schedulers": NODES_KEPT,
        "purge_dead_letters": timedelta(days=settings.HOT_PERIOD_DAYS),
        "purge_run_requests": REQUESTS_KEPT,
    }
    return {name: change(connection, name, {"before": now - age}) for name, age in kept.items()}


def purge_allowances(connection: Connection, now: datetime) -> int:
    """Delete the counts of past minutes; strangers with many addresses can make many."""
    return change(connection, "purge_allowances", {"before": now - ALLOWANCES_KEPT})


def analyze_in_background(dsn: str) -> threading.Thread:
    """Analyze the partitioned parents, which autovacuum never does, in a thread.

    It takes longer than a lock session may work on one statement.
    """
    thread = threading.Thread(target=_analyze, args=[dsn], name="beatkeeper-analyze", daemon=True)
    thread.start()
    return thread


def _analyze(dsn: str) -> None:
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            connection.execute(f"SET statement_timeout = '{ANALYZE_SECONDS}s'")
            connection.execute(f"ANALYZE {', '.join(day_partitions.TABLES)}")
    except psycopg.Error as error:
        logger.warning("the partitioned tables were not analyzed: %s", error)
