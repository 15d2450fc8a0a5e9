"""Partitions are made ahead and watched; a time without one is refused, not misplaced."""

from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings
from django.db import IntegrityError, connection

from runs.scheduler import day_partitions, maintenance
from runs.scheduler.day_partitions import TABLES, coverage, ensure, names, partition_name
from runs.scheduler.partitions.lock_session import connect
from tests.races.staging import dsn, result_after
from tests.support.factories import make_finished_run, make_job, make_worker, now

Session = psycopg.Connection[Any]
DAY = timedelta(days=1)


def today() -> Any:
    return now().date()


def drop(cursor: Any, *offsets: int) -> None:
    for table in TABLES:
        for offset in offsets:
            cursor.execute(f"DROP TABLE IF EXISTS {partition_name(table, today() + offset * DAY)}")


def test_what_is_missing_is_made_and_nothing_twice(session: Session) -> None:
    with connection.cursor() as cursor:
        drop(cursor, 3, 9)
        made = ensure(cursor, today(), back=2, ahead=10)
        wanted = {partition_name(table, today() + offset * DAY) for table in TABLES for offset in (3, 9)}
        assert set(made) == wanted
        assert ensure(cursor, today(), back=2, ahead=10) == []


def test_the_page_of_a_run_has_room_for_its_end(session: Session) -> None:
    with connection.cursor() as cursor:
        drop(cursor, 3)
        ensure(cursor, today(), back=0, ahead=3)
        cursor.execute(
            "SELECT DISTINCT inhparent::regclass::text, reloptions FROM pg_class JOIN pg_inherits ON oid = inhrelid"
            " WHERE inhparent = ANY (%s::regclass[])",
            [list(TABLES)],
        )
        # Also of those that were there before.
        assert dict(cursor.fetchall()) == {"beatkeeper_run": ["fillfactor=45"], "beatkeeper_attempt": None}


def test_coverage_ends_at_the_first_hole(session: Session) -> None:
    with connection.cursor() as cursor:
        ensure(cursor, today(), back=5, ahead=10)
        drop(cursor, 4, -3)
        assert {(found.days_back, found.days_ahead) for found in coverage(cursor, today())} == {(2, 3)}


def test_a_day_belongs_to_the_partition_of_its_name(session: Session) -> None:
    midnight = datetime.combine(today(), datetime.min.time(), timezone.utc)
    job = make_job()
    for at in (midnight, midnight + DAY - timedelta(milliseconds=1)):
        make_finished_run(job, planned_at=at)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM beatkeeper_run WHERE tableoid = %s::regclass",
            [partition_name("beatkeeper_run", today())],
        )
        assert cursor.fetchone() == (2,)


def test_a_time_without_a_partition_is_refused(session: Session) -> None:
    with pytest.raises(IntegrityError, match="no partition"):
        make_finished_run(make_job(), planned_at=now() + 400 * DAY)


def test_there_is_no_default_partition(session: Session) -> None:
    with connection.cursor() as cursor:
        for table in TABLES:
            assert all(name[-8:].isdigit() for name in names(cursor, table))


def test_too_few_days_ahead_are_an_alarm(
    session: Session, settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    maintenance.keep_partitions(session, now())
    assert "ALARM" not in caplog.text
    settings.PARTITIONS_AHEAD_DAYS = 3
    with connection.cursor() as cursor:
        drop(cursor, *range(4, 20))
    maintenance.keep_partitions(session, now())
    assert "reach only 3 days ahead" in caplog.text


def test_workers_that_ended_long_ago_are_forgotten(session: Session) -> None:
    pool = make_job().pool
    old, recent = now() - 2 * DAY, now() - timedelta(hours=2)
    make_worker(pool, state="lost", last_beat_at=old)
    make_worker(pool, state="left", last_beat_at=recent)
    make_worker(pool, last_beat_at=old)
    assert maintenance.purge(session, now())["purge_workers"] == 1


@pytest.mark.django_db(transaction=True)
def test_two_schedulers_that_start_at_once_make_each_partition_once() -> None:
    far = today() + 300 * DAY
    made: list[str] = []
    try:
        with connect(dsn(), "first", 30) as first, connect(dsn(), "second", 30) as second:
            first.execute("BEGIN")
            made = ensure(first.cursor(), far, back=0, ahead=0)
            result_after(first, lambda: _ensure_in_transaction(second, far))
            assert len(made) == len(TABLES)
            assert day_partitions.coverage(first.cursor(), far)[0].days_ahead == 0
    finally:
        with connection.cursor() as cursor:
            for name in made:
                cursor.execute(f"DROP TABLE IF EXISTS {name}")


@pytest.mark.django_db(transaction=True)
def test_the_parents_are_analyzed() -> None:
    thread = maintenance.analyze_in_background(dsn())
    thread.join(30)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_user_tables WHERE relname = ANY (%s) AND last_analyze IS NOT NULL",
            [list(TABLES)],
        )
        assert cursor.fetchone() == (len(TABLES),)


def _ensure_in_transaction(session: Session, day: Any) -> list[str]:
    with session.transaction():
        return ensure(session.cursor(), day, back=0, ahead=0)
