"""Many jobs at once, on a session of the scheduler's own: what one job, or a day of downtime, costs the others."""

import logging
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Job, JobStatus
from runs.models import MissedSpan
from runs.scheduler.partitions.batch_size import BatchSize
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.trigger.trigger import Triggered, trigger_due
from runs.scheduler.trigger_loop import TRIGGER_BATCH, TriggerLoop
from tests.races.staging import dsn
from tests.support.factories import make_due, make_job, make_pool, make_tenant, now

pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)

# A job each, whose schedule began so long ago that it is due from `due` on; anchors are spread over a minute.
JOBS = """
INSERT INTO beatkeeper_job
        (id, tenant_id, name, description, pool_id, status, status_reason, status_by, priority, tags, version)
    SELECT gen_random_uuid(), %(tenant)s, 'job-' || i, '', %(pool)s, 'active', '', '', 500, '{}', 1
    FROM generate_series(1, %(jobs)s) i;
INSERT INTO beatkeeper_job_version (job_id, version, target, target_key, schedule, timeout_ms, overlap, catch_up,
        retry, anchor_at, created_by)
    SELECT id, 1, '{"kind": "celery", "task": "demo.hello"}', 'demo.hello', '{"every": 60}', 60000, 'allow_all',
           jsonb_build_object('window', 86400, 'policy',
                              (%(policies)s::text[])[1 + n %% cardinality(%(policies)s::text[])]),
           '{"max_attempts": 4, "backoff": "exponential", "base": 10, "cap": 3600}',
           %(due)s + n * 60000 / %(jobs)s * interval '1 millisecond' - interval '1 minute', ''
    FROM (SELECT id, row_number() OVER () AS n FROM beatkeeper_job WHERE tenant_id = %(tenant)s) numbered;
INSERT INTO beatkeeper_job_clock (job_id, slice, next_run_at)
    SELECT job_id, get_byte(uuid_send(job_id), 15) & 63, version.anchor_at + interval '1 minute'
    FROM beatkeeper_job_version version JOIN beatkeeper_job job ON job.id = job_id
    WHERE tenant_id = %(tenant)s;
ANALYZE beatkeeper_job; ANALYZE beatkeeper_job_version; ANALYZE beatkeeper_job_clock
"""


@pytest.fixture
def lock_session() -> Iterator[LockSession]:
    with LockSession(dsn(), "at scale", 30) as session:
        yield session


def make_jobs(jobs: int, due: datetime, policies: list[str]) -> int:
    """Return the id of their tenant."""
    tenant = make_tenant()
    values: dict[str, Any] = {
        "jobs": jobs,
        "tenant": tenant.pk,
        "pool": make_pool().pk,
        "due": due,
        "policies": policies,
    }
    with connection.cursor() as cursor:
        for statement in JOBS.split(";\n"):
            cursor.execute(statement, values if "%(" in statement else None)
    return tenant.pk


def count(query: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return cursor.fetchone()[0]


def test_a_poison_job_of_each_kind_among_ten_thousand_costs_nobody_its_time(
    lock_session: LockSession, caplog: pytest.LogCaptureFixture
) -> None:
    due = now() - 10 * SECOND
    tenant = make_jobs(10_000, due - MINUTE, ["skip"])
    with connection.cursor() as cursor:
        # All at one instant, the poison among the oldest.
        cursor.execute("UPDATE beatkeeper_job_clock SET next_run_at = %s", [due])
        cursor.execute(
            "ALTER TABLE beatkeeper_live_run ADD CONSTRAINT no_poison CHECK (target_key <> 'poison')"
        )
    daily = {"cron": "0 0 * * *"}
    doomsday = datetime.max.replace(tzinfo=due.tzinfo)
    poison = {
        "no next time": make_job(spec={"schedule": {"every": 60}, "anchor_at": doomsday}),
        "unreadable": make_job(spec={"schedule": {"cron": "61 * * * *"}}),
        "zone gone": make_job(spec={"schedule": {**daily, "timezone": "Europe/Atlantis"}}),
        "calendar gone": make_job(spec={"schedule": {**daily, "calendar": {"name": "gone", "on_closed": "exclude"}}}),
        "refused": make_job(spec={"target_key": "poison"}),
    }  # fmt: skip
    for job in poison.values():
        make_due(job, due - SECOND)
    caplog.set_level(logging.CRITICAL, "runs.events")
    try:
        done = _trigger_all(lock_session)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE beatkeeper_live_run DROP CONSTRAINT no_poison")
    assert sum(one.unrunnable for one in done) == len(poison)
    fired = "SELECT count(*) FROM beatkeeper_run WHERE tenant_id = %s AND planned_at = %s AND state IS NULL"
    assert count(fired, tenant, due) == 10_000
    late = "SELECT max(created_at - planned_at) FROM beatkeeper_run WHERE tenant_id = %s"
    assert count(late, tenant) < 10 * SECOND + 30 * SECOND
    for kind, job in poison.items():
        job.refresh_from_db()
        assert (job.status, job.clock.next_run_at) == (JobStatus.UNRUNNABLE, None), kind
        assert MissedSpan.objects.get(job=job).begins_at == due - SECOND, kind
        entry = AuditEntry.objects.get(action="job.unrunnable", object_id=str(job.pk))
        assert entry.reason == job.status_reason != "", kind
    assert "Atlantis" in poison["zone gone"].status_reason
    assert "no_poison" in poison["refused"].status_reason


@pytest.mark.parametrize(
    ("jobs", "seconds", "watched", "late"),
    [
        # On a machine that other tests keep busy; whoever waited for what was missed would be minutes late.
        pytest.param(5_000, 5, 10, 5, id="short"),
        pytest.param(100_000, 10, 60, 1, id="full", marks=pytest.mark.chaos),
    ],
)
def test_after_a_day_of_downtime_what_is_due_is_soon_on_time(
    lock_session: LockSession, jobs: int, seconds: int, watched: int, late: int
) -> None:
    """Per-minute jobs of all three policies; a third of them has a day of runs to make up for, which yields."""
    first = now() - DAY
    tenant = make_jobs(jobs, first, ["skip", "last", "all"])
    restarted = now()
    last = restarted + (seconds + watched) * SECOND
    work = TriggerLoop(lock_session, BatchSize("trigger", TRIGGER_BATCH), lambda: None)
    while now() < last:
        time.sleep(work.step())
    lock_session.close()
    current = restarted + seconds * SECOND
    on_time = (
        "SELECT percentile_disc(0.99) WITHIN GROUP (ORDER BY created_at - planned_at)"
        " FROM beatkeeper_run WHERE tenant_id = %s AND trigger = 'schedule' AND planned_at BETWEEN %s AND %s"
    )
    assert count(on_time, tenant, current, last - SECOND) < late * SECOND
    # Nothing that was planned since then is missing, and what was missed is being made up for meanwhile.
    missing = (
        "SELECT count(*) FROM beatkeeper_job_clock clock JOIN beatkeeper_job job ON job.id = clock.job_id"
        " WHERE job.tenant_id = %s AND clock.next_run_at <= %s"
    )
    assert count(missing, tenant, last - 2 * late * SECOND) == 0
    made_up_for = "SELECT count(*) FROM beatkeeper_run WHERE tenant_id = %s AND trigger = 'catch_up'"
    assert count(made_up_for, tenant) > 0
    _check_outcomes(list(Job.objects.filter(tenant_id=tenant).order_by("id")[:30]), first)


def _trigger_all(session: LockSession) -> list[Triggered]:
    done = [trigger_due(session.connection, ALL)]
    while done[-1].more:
        done.append(trigger_due(session.connection, ALL))
    return done


def _check_outcomes(jobs: list[Job], since: datetime) -> None:
    for job in jobs:
        anchor, until = job.spec.anchor_at, job.clock.next_run_at
        assert until is not None
        runs = set(job.run_set.values_list("planned_at", flat=True))
        spans = list(job.missed_spans.values_list("begins_at", "ends_at"))
        at = anchor + MINUTE
        while at < until:
            assert (at in runs) + sum(begin <= at < end for begin, end in spans) == 1, (job.pk, at)
            at += MINUTE
        assert len(runs) <= (until - since) // MINUTE
