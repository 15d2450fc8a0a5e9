"""Missed times against everybody who may take or drop them at the same moment (promises 2 and 3)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from django.db import transaction

from jobs.models import Effect, Job, JobStatus, Override, Suspension, SuspensionKind, Tenant
from jobs.services.definition import delete_job, edit_job
from jobs.services.status import cancel_job, resume_job
from jobs.suspensions.service import lift_suspension
from runs.models import LiveRun, MissedSpan, Run
from runs.scheduler.catch_up.catch_up import catch_up_once
from runs.scheduler.partitions.lock_session import connect
from runs.scheduler.trigger.trigger import trigger_due
from tests.races.staging import Session, dsn, held_open, result_after, waiting_for
from tests.support.factories import make_job, make_run, now, post_job

pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def make_behind(hours: int = 3, **fields: Any) -> tuple[Job, list[datetime]]:
    """Make an hourly job and the times it missed."""
    policy = {"policy": "all", "window": 86_400, **fields.pop("catch_up", {})}
    anchor = now() - (hours + 0.5) * HOUR
    spec = {"schedule": {"every": 3600}, "anchor_at": anchor, "catch_up": policy, **fields.pop("spec", {})}
    job = make_job(next_run_at=anchor + HOUR, spec=spec, **fields)
    return job, [anchor + number * HOUR for number in range(1, hours + 1)]


def make_suspension(tenant: Tenant, **fields: Any) -> Suspension:
    values = {"kind": SuspensionKind.PAUSE, "effect": Effect.SKIP, "begins_at": now() - 24 * HOUR}
    return Suspension.objects.create(tenant=tenant, **{**values, **fields})


def planned(job: Job) -> list[datetime]:
    return list(Run.objects.filter(job=job).order_by("id").values_list("planned_at", flat=True))


def outcomes(job: Job, times: list[datetime]) -> list[int]:
    """How many runs and spans each of these times has: one is right."""
    runs, spans = planned(job), list(MissedSpan.objects.filter(job=job))
    return [runs.count(at) + sum(span.begins_at <= at < span.ends_at for span in spans) for at in times]


def let_pace_pass() -> None:
    MissedSpan.objects.filter(state="working").update(next_at=now())


def test_two_schedulers_at_one_span_make_each_run_once(first: Session, second: Session) -> None:
    job, times = make_behind()
    trigger_due(first, ALL)
    for done in range(1, 4):
        let_pace_pass()
        with first.transaction():
            assert catch_up_once(first, ALL).runs == 1
            assert catch_up_once(second, ALL).runs == 0
        assert len(planned(job)) == done
    assert planned(job) == times and not MissedSpan.objects.exists()


def test_a_step_that_dies_leaves_its_times_to_the_next(first: Session, second: Session) -> None:
    job, times = make_behind()
    trigger_due(first, ALL)
    with first.transaction(force_rollback=True):
        assert catch_up_once(first, ALL).runs == 1
    assert outcomes(job, times) == [1, 1, 1]
    assert catch_up_once(second, ALL).runs == 1
    assert outcomes(job, times) == [1, 1, 1]


def test_a_run_that_somebody_inserted_meanwhile_is_found_by_its_key(first: Session, second: Session) -> None:
    job, times = make_behind()
    trigger_due(second, ALL)
    with held_open() as holder:
        make_run(job, planned_at=times[0])
        assert result_after(holder, lambda: catch_up_once(second, ALL)).runs == 0
    assert planned(job) == times[:1]


@pytest.mark.parametrize("end", [cancel_job, delete_job])
def test_a_job_that_ends_during_a_step_ends_what_the_step_made(
    first: Session, end: Callable[[Job], Any]
) -> None:
    job, times = make_behind()
    trigger_due(first, ALL)
    first.execute("BEGIN")
    assert catch_up_once(first, ALL).runs == 1
    result_after(first, lambda: end(job))
    assert not LiveRun.objects.filter(job=job).exists()
    let_pace_pass()
    assert catch_up_once(first, ALL).runs == 0
    assert outcomes(job, times) == [1, 1, 1]


@pytest.mark.parametrize(
    "change",
    [cancel_job, lambda job: edit_job(job, {"catch_up": {"policy": "skip"}})],
    ids=["cancel", "another policy"],
)
def test_a_step_leaves_a_job_alone_that_somebody_is_changing(
    first: Session, change: Callable[[Job], Any]
) -> None:
    job, times = make_behind()
    trigger_due(first, ALL)
    with transaction.atomic():
        change(job)
        assert catch_up_once(first, ALL).runs == 0
    assert catch_up_once(first, ALL).runs == 0
    assert outcomes(job, times) == [1, 1, 1]
    assert MissedSpan.objects.get(job=job).state == "settled"


def test_a_resume_and_the_cursor_of_an_older_gap_come_one_after_the_other(first: Session) -> None:
    job, times = make_behind()
    trigger_due(first, ALL)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.PAUSED, status_at=now())
    with transaction.atomic():
        resume_job(job)
        assert catch_up_once(first, ALL).runs == 0
    let_pace_pass()
    assert catch_up_once(first, ALL).runs == 1
    assert outcomes(job, times) == [1, 1, 1]


class TestSuspensions:
    def test_lifting_a_suspension_waits_for_the_visit_that_leaves_a_span_to_it(self, first: Session) -> None:
        job, times = make_behind()
        suspension = make_suspension(job.tenant)
        first.execute("BEGIN")
        assert trigger_due(first, ALL).spans == 1
        result_after(first, lambda: Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now()))
        assert (catch_up_once(first, ALL).settled, catch_up_once(first, ALL).ended) == (1, 1)
        assert outcomes(job, times) == [1, 1, 1]

    def test_a_visit_leaves_jobs_alone_whose_stop_is_being_lifted(self, first: Session) -> None:
        job, times = make_behind()
        other, _ = make_behind()
        suspension = make_suspension(job.tenant)
        with transaction.atomic():
            Suspension.objects.filter(pk=suspension.pk).update(lifted_at=times[1])
            done = trigger_due(first, ALL)
            assert (done.spans, outcomes(job, times)) == (1, [0, 0, 0])
        trigger_due(first, ALL)
        assert outcomes(job, times) == [1, 1, 1]
        assert MissedSpan.objects.get(job=job, suspension=suspension).ends_at == times[1]

    def test_visits_one_after_the_other_do_not_keep_a_suspension_from_being_lifted(
        self, first: Session, second: Session
    ) -> None:
        """They share its row; whoever comes after the one that lifts it stands behind."""
        job, times = make_behind()
        suspension = make_suspension(job.tenant)
        first.execute("BEGIN")
        assert trigger_due(first, ALL).spans == 1
        later, later_times = make_behind(tenant=job.tenant)
        with waiting_for(first, lambda: lift_suspension(suspension)) as lifting:
            assert trigger_due(second, ALL).spans == 0
            first.execute("COMMIT")
            lifting.result(timeout=60)
        assert trigger_due(second, ALL).spans == 1
        assert outcomes(job, times) == outcomes(later, later_times) == [1, 1, 1]

    def test_a_suspension_does_not_end_while_a_visit_leaves_a_span_to_it(
        self, first: Session, second: Session
    ) -> None:
        """Nobody sees the span yet, and the clock stands where it stood: only the row of the suspension tells."""
        job, times = make_behind()
        suspension = make_suspension(job.tenant, ends_at=now() - SECOND)
        with first.transaction():
            assert trigger_due(first, ALL).spans == 1
            assert catch_up_once(second, ALL).ended == 0
        assert (catch_up_once(second, ALL).settled, catch_up_once(second, ALL).ended) == (1, 1)
        suspension.refresh_from_db()
        assert suspension.settled_at is not None and outcomes(job, times) == [1, 1, 1]

    def test_an_edit_that_meets_a_lift_settles_its_times_by_what_holds_then(self, first: Session) -> None:
        job = post_job(schedule={"every": 3600}, overlap="allow_all", catch_up={"policy": "skip"})
        behind, times = make_behind()
        with transaction.atomic(), transaction.get_connection().cursor() as cursor:
            cursor.execute("SET LOCAL session_replication_role = replica")
            job.versions.update(anchor_at=behind.spec.anchor_at)
            type(behind.clock).objects.filter(job=job).update(next_run_at=times[0])
        suspension = make_suspension(job.tenant)
        first.execute("BEGIN")
        first.execute(
            "UPDATE beatkeeper_suspension SET lifted_at = %s WHERE id = %s", [times[1], suspension.pk]
        )
        result_after(first, lambda: edit_job(job, {"schedule": {"every": 60}}))
        assert outcomes(job, times) == [1, 1, 1]
        assert MissedSpan.objects.get(job=job, suspension=suspension).ends_at == times[1]

    def test_two_schedulers_settle_a_suspension_once(self, first: Session, second: Session) -> None:
        job, times = make_behind(catch_up={"policy": "last"})
        suspension = make_suspension(job.tenant, effect=Effect.CATCH_UP)
        trigger_due(first, ALL)
        Suspension.objects.filter(pk=suspension.pk).update(lifted_at=now())
        with first.transaction():
            assert catch_up_once(first, ALL).settled == 1
            assert catch_up_once(second, ALL).settled == 0
        assert catch_up_once(second, ALL).settled == 0
        assert planned(job) == times[-1:] and outcomes(job, times) == [1, 1, 1]


class Cut(psycopg.OperationalError):
    """The connection is gone."""


@contextmanager
def cut_at(monkeypatch: pytest.MonkeyPatch, session: Session, statement: int) -> Iterator[None]:
    """Cut the session at this statement and at all after it."""
    execute = psycopg.Cursor.execute
    number = count(1)

    def execute_or_die(cursor: Any, *arguments: Any, **options: Any) -> Any:
        if cursor.connection is session and next(number) >= statement:
            raise Cut
        return execute(cursor, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(psycopg.Cursor, "execute", execute_or_die)
        yield


def make_a_bit_of_everything() -> list[tuple[Job, list[datetime]]]:
    """Gaps of each policy, one cut by a suspension, one with changed times, one that finishes, and one of poison."""
    behind = [make_behind(5, catch_up={"policy": policy}) for policy in ("skip", "last", "all")]
    stopped, times = make_behind(5)
    make_suspension(
        stopped.tenant, begins_at=times[1] - SECOND, ends_at=times[3] - SECOND, effect=Effect.RUN_AFTER
    )
    changed, changed_times = make_behind(5)
    for at, moved_to in ((changed_times[1], None), (changed_times[4], now() - SECOND)):
        Override.objects.create(job=changed, planned_at=at, moved_to=moved_to, created_by="ann")
    once = now() - HOUR
    ends = make_job(next_run_at=once, spec={"schedule": {"at": once.isoformat()}})
    overlapping = make_behind(5, spec={"overlap": "buffer_one"})
    poison = make_job(next_run_at=once, spec={"schedule": {"cron": "61 * * * *"}})
    return [
        *behind, (stopped, times), (changed, changed_times), (ends, [once]), overlapping, (poison, [once]),
    ]  # fmt: skip


def test_a_scheduler_may_die_before_any_of_its_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first, before the second, and so on: whoever comes next settles each time once."""
    jobs = make_a_bit_of_everything()
    deaths = _die_everywhere(monkeypatch, lambda session: trigger_due(session, ALL))
    assert deaths > 10
    for job, times in jobs:
        assert outcomes(job, times) == [1] * len(times), job.spec.catch_up
    for _ in range(6):
        let_pace_pass()
        deaths = _die_everywhere(monkeypatch, lambda session: catch_up_once(session, ALL))
        assert deaths > 3
        for job, times in jobs:
            assert outcomes(job, times) == [1] * len(times), job.spec.catch_up
    assert not MissedSpan.objects.exclude(state="settled").exclude(job__in=[jobs[6][0]]).exists()


def _die_everywhere(monkeypatch: pytest.MonkeyPatch, act: Callable[[Session], Any]) -> int:
    """Return how often it died, each time a statement later, until it lives."""
    for statement in range(1, 200):
        with connect(dsn(), "mortal", 30) as session, cut_at(monkeypatch, session, statement):
            try:
                act(session)
            except Cut:
                continue
        return statement - 1
    raise AssertionError("it never came to its end")
