"""Attacks promise 2: locks only divide the work, the key of the run prevents the duplicate."""

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from jobs.models import Job
from jobs.services.definition import edit_job
from jobs.services.status import pause_job
from runs.models import LiveRun, MissedSpan, Run
from runs.scheduler.partitions.lock_session import connect
from runs.scheduler.trigger.trigger import trigger_due
from scheduler_project.sdk.ids import run_id
from tests.races.staging import Session, dsn, result_after, waiting_for
from tests.support.factories import make_due, make_job, now, post_job

pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
SECOND = timedelta(seconds=1)


def planned(job: Job) -> list[datetime]:
    return list(Run.objects.filter(job=job).order_by("id").values_list("planned_at", flat=True))


def next_run_at(job: Job) -> datetime:
    job.clock.refresh_from_db()
    assert job.clock.next_run_at is not None
    return job.clock.next_run_at


def test_two_triggers_of_one_slice_share_its_clocks_without_waiting(first: Session, second: Session) -> None:
    jobs = [make_job() for _ in range(4)]
    times = [make_due(job) for job in jobs]
    with first.transaction():
        assert trigger_due(first, ALL).runs == 4
        assert trigger_due(second, ALL).runs == 0
    assert trigger_due(second, ALL).runs == 0
    assert [planned(job) for job in jobs] == [[at] for at in times]


def test_a_trigger_that_dies_before_its_commit_leaves_everything_to_the_next(
    first: Session, second: Session
) -> None:
    job = make_job()
    due_at = make_due(job)
    with first.transaction(force_rollback=True):
        assert trigger_due(first, ALL).runs == 1
    assert trigger_due(second, ALL).runs == 1
    assert planned(job) == [due_at]


def test_a_run_inserted_meanwhile_by_somebody_without_the_clock_is_found_by_its_key(
    first: Session, second: Session
) -> None:
    """A backfill, or a scheduler that believes it still holds its locks."""
    job = make_job()
    due_at = make_due(job)
    first.execute("BEGIN")
    _insert_run(first, job, due_at)
    done = result_after(first, lambda: trigger_due(second, ALL))
    assert done.runs == 0
    assert planned(job) == [due_at]
    assert next_run_at(job) > due_at


def test_an_edit_waits_for_the_trigger_and_counts_from_there(first: Session) -> None:
    job = post_job(schedule={"every": 60})
    due_at = make_due(job)
    first.execute("BEGIN")
    assert trigger_due(first, ALL).runs == 1
    result_after(first, lambda: edit_job(job, {"schedule": {"every": 3600}}))
    assert planned(job) == [due_at]
    assert next_run_at(job) > now() + 3000 * SECOND


def test_a_trigger_leaves_a_clock_under_edit_alone_and_the_edit_fires_what_is_due(first: Session) -> None:
    job = post_job(schedule={"every": 60})
    due_at = make_due(job)
    first.execute("BEGIN")
    first.execute("SELECT FROM beatkeeper_job_clock WHERE job_id = %s FOR UPDATE", [job.pk])
    with waiting_for(first, lambda: pause_job(job)) as pausing, connect(dsn(), "other") as other:
        assert trigger_due(other, ALL).runs == 0
        first.execute("COMMIT")
        pausing.result(timeout=60)
        assert trigger_due(other, ALL).runs == 0
    assert planned(job) == [due_at]
    job.clock.refresh_from_db()
    assert job.clock.next_run_at is None


@pytest.mark.parametrize("schedule", [None, {"cron": "61 * * * *"}], ids=["finished", "unrunnable"])
def test_a_job_that_a_request_holds_keeps_no_other_job_from_its_runs(
    first: Session, second: Session, schedule: dict[str, Any] | None
) -> None:
    """A process that stands still in the middle of a run-now: its job cannot finish or become unrunnable meanwhile."""
    once = {"at": (now() - SECOND).isoformat()}
    held, other = make_job(spec={"schedule": schedule or once}), make_job()
    due, _ = make_due(held), make_due(other)
    with first.transaction():
        first.execute("SELECT FROM beatkeeper_job WHERE id = %s FOR SHARE", [held.pk])
        done = trigger_due(second, ALL)
        assert (done.runs, done.finished, done.unrunnable) == (1, 0, 0)
        assert len(planned(other)) == 1 and next_run_at(held) == due
    done = trigger_due(second, ALL)
    assert (done.finished, done.unrunnable) == ((0, 1) if schedule else (1, 0))


def test_a_trigger_that_follows_another_at_once_sees_its_unfinished_run(
    first: Session, second: Session
) -> None:
    """The job is read after its clock was locked, so the overlap is judged by what is committed by then."""
    anchor = now() - 1.5 * SECOND
    job = make_job(
        next_run_at=anchor + SECOND,
        spec={"schedule": {"every": 1}, "anchor_at": anchor, "overlap": "skip"},
    )
    assert trigger_due(first, ALL).runs == 1
    make_due(job, anchor + SECOND)
    done = trigger_due(second, ALL)
    assert (done.runs, LiveRun.objects.filter(job=job).count()) == (0, 1)


def test_a_crowd_of_triggers_without_any_slices_makes_each_run_once() -> None:
    """Everybody believes to hold everything, as after the worst of splits."""
    start = now() - 20 * SECOND
    jobs = [
        make_job(next_run_at=start + SECOND, spec={"schedule": {"every": 1}, "anchor_at": start})
        for _ in range(40)
    ]

    def trigger_for_a_while(number: int) -> None:
        with connect(dsn(), f"crowd-{number}", 30) as session:
            for _ in range(15):
                trigger_due(session, ALL, batch=64)

    with ThreadPoolExecutor(4) as crowd:
        list(crowd.map(trigger_for_a_while, range(4)))
    for job in jobs:
        times = planned(job)
        seconds = (next_run_at(job) - start) // SECOND - 1
        assert times == [start + (number + 1) * SECOND for number in range(seconds)]
        assert len(times) >= 20
    assert not MissedSpan.objects.exists()


def _insert_run(session: Session, job: Job, at: datetime) -> None:
    session.execute(
        "INSERT INTO beatkeeper_run (id, tenant_id, job_id, version, pool_id, trigger, planned_at, priority)"
        " VALUES (%s, %s, %s, 1, %s, 'schedule', %s, 500)",
        [run_id(job.pk, at), job.tenant_id, job.pk, job.pool_id, at],
    )
