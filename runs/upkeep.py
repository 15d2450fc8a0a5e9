"""Daily housekeeping of the tables, done by the scheduler that rescues, and by each one when it starts."""

import logging
import threading
from datetime import datetime, timedelta

import psycopg
from django.conf import settings

from runs import day_partitions
from runs.queries import Connection, change

logger = logging.getLogger(__name__)

NODES_KEPT = timedelta(days=1)
REQUESTS_KEPT = timedelta(days=30)
ANALYZE_SECONDS = 600


def keep_partitions(connection: Connection, now: datetime) -> None:
    """Partitions of the hot period and of the days ahead; too few of them is an alarm, not a surprise."""
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


def forget_nodes(connection: Connection, now: datetime) -> int:
    return change(connection, "forget_nodes", {"before": now - NODES_KEPT})


def forget_schedulers(connection: Connection, now: datetime) -> int:
    return change(connection, "forget_schedulers", {"before": now - NODES_KEPT})


def forget_run_requests(connection: Connection, now: datetime) -> int:
    return change(connection, "forget_run_requests", {"before": now - REQUESTS_KEPT})


def forget_letters(connection: Connection, now: datetime) -> int:
    """Decided so long ago that their runs leave the hot period."""
    return change(connection, "forget_letters", {"before": now - timedelta(days=settings.HOT_PERIOD_DAYS)})


def analyze_in_background(dsn: str) -> threading.Thread:
    """Autovacuum never analyzes a partitioned parent; it takes longer than a lock session may work."""
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
