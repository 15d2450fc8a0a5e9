"""Runs triggered and runs handed over a second, by one process, on a million clocks with 1 kB of payload each.

All indexes and constraints, fsync and synchronous_commit as shipped. Beside each stands the plain way, measured
in the same run on the same rows: one transaction for each job or run.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.conf import LazySettings

from runs.dispatch import PoolMemory, dispatch_pool
from runs.slices import connect
from runs.trigger import trigger_due
from scheduler_project.sdk.ids import run_id
from tests.bench.results import Tell

pytestmark = pytest.mark.bench
Session = psycopg.Connection[Any]
SECONDS = 10.0
DUE = 150_000
PLAIN = 1000
SLICES = range(64)


@dataclass
class Rate:
    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.count / self.seconds


@pytest.fixture
def session(measured: str) -> Iterator[Session]:
    with connect(measured, "bench", 60) as connection:
        connection.execute("SET statement_timeout = '10min'")
        yield connection


def test_triggers_a_second(session: Session, tell: Tell, settings: LazySettings) -> None:
    # The full hour may be a while ago; each job is to have the one run it would have had then.
    settings.MISFIRE_GRACE_SECONDS = 3700
    _make_due(session, "0 * * * *")
    plain = _trigger_one_by_one(session)
    triggered = _trigger(session)
    assert triggered.count > PLAIN
    figures = {
        "triggers_per_second": round(triggered.per_second),
        "one_by_one_per_second": round(plain.per_second),
        "ratio": round(triggered.per_second / plain.per_second, 1),
        "triggered": triggered.count,
    }
    tell(
        "trigger",
        f"trigger: {triggered.per_second:,.0f} runs a second in one process,"
        f" {figures['ratio']} times the plain way ({plain.per_second:,.0f})",
        **figures,
    )


def test_hand_overs_a_second(session: Session, tell: Tell) -> None:
    plain = _mark_one_by_one(session)
    marked = _dispatch(session)
    assert marked.count > PLAIN
    figures = {
        "marks_per_second": round(marked.per_second),
        "one_by_one_per_second": round(plain.per_second),
        "ratio": round(marked.per_second / plain.per_second, 1),
        "marked": marked.count,
    }
    tell(
        "dispatch",
        f"dispatch: {marked.per_second:,.0f} runs a second handed over in one process, 100 lanes,"
        f" {figures['ratio']} times the plain way ({plain.per_second:,.0f})",
        **figures,
    )


def _trigger(session: Session) -> Rate:
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        done = trigger_due(session, SLICES)
        count += done.runs + done.skipped
        if not done.more:
            break
    return Rate(count, time.perf_counter() - start)


def _trigger_one_by_one(session: Session) -> Rate:
    """What a loop over due jobs does: lock, insert, insert, move on, commit."""
    start = time.perf_counter()
    for _ in range(PLAIN):
        with session.transaction():
            job, at = session.execute(
                "SELECT job_id, next_run_at FROM beatkeeper_job_clock WHERE next_run_at <= now()"
                " AND slice = ANY (%s) LIMIT 1 FOR UPDATE SKIP LOCKED",
                [list(SLICES)],
            ).fetchall()[0]
            _insert_run(session, job, at)
            session.execute(
                "UPDATE beatkeeper_job_clock SET next_run_at = %s WHERE job_id = %s",
                [at + timedelta(hours=1), job],
            )
    return Rate(PLAIN, time.perf_counter() - start)


def _insert_run(session: Session, job: Any, at: datetime) -> None:
    tenant, pool, priority, target_key = session.execute(
        "SELECT tenant_id, pool_id, priority, target_key FROM beatkeeper_job job"
        " JOIN beatkeeper_job_version version ON version.job_id = job.id AND version.version = job.version"
        " WHERE job.id = %s",
        [job],
    ).fetchall()[0]
    values = [run_id(job, at), tenant, job, pool, at, priority]
    session.execute(
        "INSERT INTO beatkeeper_run (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority)"
        " VALUES (%s, %s, %s, 1, %s, 'schedule', %s, %s)",
        values,
    )
    session.execute(
        "INSERT INTO beatkeeper_live_run (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority,"
        " available_at, rank, state, target_key) VALUES (%s, %s, %s, 1, %s, 'schedule', %s, %s, %s, 0, 'ready', %s)",
        [*values, at, target_key],
    )


def _dispatch(session: Session) -> Rate:
    """Claims are played by a delete, which is not counted: the windows open as fast as they are filled."""
    memory, count, spent = PoolMemory(), 0, 0.0
    session.execute("UPDATE beatkeeper_worker_node SET last_beat_at = now() + interval '1 hour'")
    while spent < SECONDS / 2:
        now = session.execute("SELECT clock_timestamp()").fetchall()[0][0]
        start = time.perf_counter()
        done = dispatch_pool(session, 1, now, memory)
        spent += time.perf_counter() - start
        count += done.queued
        if not done.waiting:
            break
        session.execute("DELETE FROM beatkeeper_live_run WHERE state = 'queued'")
    return Rate(count, spent)


def _mark_one_by_one(session: Session) -> Rate:
    start = time.perf_counter()
    for _ in range(PLAIN):
        session.execute(
            "UPDATE beatkeeper_live_run SET state = 'queued', queued_at = clock_timestamp() WHERE id = ("
            " SELECT id FROM beatkeeper_live_run WHERE state = 'ready' AND pool_id = 1"
            " ORDER BY pool_id, tenant_id, rank LIMIT 1 FOR UPDATE SKIP LOCKED)"
        )
    return Rate(PLAIN, time.perf_counter() - start)


def _make_due(session: Session, cron: str) -> None:
    """So many jobs at one instant, as at every full hour of a large installation."""
    session.execute("ALTER TABLE beatkeeper_job_version DISABLE TRIGGER USER")
    session.execute(
        "UPDATE beatkeeper_job_version SET schedule = jsonb_build_object('cron', %s::text, 'timezone',"
        " 'America/New_York') WHERE job_id IN (SELECT job_id FROM beatkeeper_job_clock ORDER BY job_id LIMIT %s)",
        [cron, DUE],
    )
    session.execute("ALTER TABLE beatkeeper_job_version ENABLE TRIGGER USER")
    session.execute("VACUUM ANALYZE beatkeeper_job_version")
    session.execute(
        "UPDATE beatkeeper_job_clock SET next_run_at = CASE WHEN job_id IN ("
        "     SELECT job_id FROM beatkeeper_job_clock ORDER BY job_id LIMIT %s) THEN date_trunc('hour', now())"
        "     ELSE now() + interval '1 day' END"
        " WHERE next_run_at <= now() + interval '1 hour' OR job_id IN ("
        "     SELECT job_id FROM beatkeeper_job_clock ORDER BY job_id LIMIT %s)",
        [DUE, DUE],
    )
    session.execute("VACUUM ANALYZE beatkeeper_job_clock")
    session.execute("CHECKPOINT")
