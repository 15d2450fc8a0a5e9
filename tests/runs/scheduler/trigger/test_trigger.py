"""Attacks promises 2 and 3: one run per planned time, and an outcome for each."""

from datetime import datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection

from auditlog.models import AuditEntry
from jobs.models import Calendar, Job, JobClock, JobStatus, Override
from jobs.schedules import jittered, parse
from runs.models import LiveRun, MissedSpan, Run
from runs.scheduler.partitions.lock_session import LostLocks
from runs.scheduler.trigger.new_runs import rank
from runs.scheduler.trigger.trigger import NoPartition, Triggered, trigger_due, trigger_job
from runs.states import LiveState, Trigger
from scheduler_project.sdk.ids import MILLISECOND, run_id
from tests.support.factories import make_due, make_finished_run, make_job, make_run, now

Session = psycopg.Connection[Any]
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
ALL = range(64)


def trigger(session: Session, **options: Any) -> Triggered:
    return trigger_due(session, ALL, **options)


def every(seconds: float, anchor: datetime, **spec: Any) -> dict[str, Any]:
    return {"schedule": {"every": seconds}, "anchor_at": anchor, **spec}


def next_run_at(job: Job) -> datetime | None:
    job.clock.refresh_from_db()
    at: datetime | None = job.clock.next_run_at
    return at


def test_a_due_job_gets_the_run_of_its_planned_time(session: Session) -> None:
    job = make_job(priority=700)
    due_at = make_due(job)
    done = trigger(session)
    assert (done.runs, done.more) == (1, False)
    run = Run.objects.get(pk=run_id(job.pk, due_at))
    assert (run.planned_at, run.trigger, run.version, run.state) == (due_at, Trigger.SCHEDULE, 1, None)
    assert run.live.state == LiveState.READY
    assert run.live.rank == rank(due_at, 700)
    assert not run.live.gated


def test_the_next_time_follows_from_the_planned_time_not_from_the_clock(session: Session) -> None:
    anchor = now() - 90 * SECOND
    job = make_job(next_run_at=anchor + MINUTE, spec=every(60, anchor))
    trigger(session)
    assert next_run_at(job) == anchor + 2 * MINUTE


def test_nothing_is_triggered_before_its_time(session: Session) -> None:
    job = make_job(next_run_at=now() + MINUTE)
    assert trigger(session).runs == 0
    assert not Run.objects.filter(job=job).exists()


def test_other_slices_are_left_to_others(session: Session) -> None:
    job = make_job()
    make_due(job)
    others = [number for number in ALL if number != job.clock.slice]
    assert trigger_due(session, others).runs == 0
    assert trigger_due(session, [job.clock.slice]).runs == 1


def test_of_one_instant_the_most_urgent_are_triggered_first(session: Session) -> None:
    due_at = now() - SECOND
    jobs = [make_job(next_run_at=due_at, priority=priority) for priority in (200, 1000, 0, 600)]
    overdue = make_job(next_run_at=due_at - SECOND, priority=0)
    for job in (*jobs, overdue):
        JobClock.objects.filter(job=job).update(slice=0, priority=job.priority)
    order: list[Job] = []
    while (done := trigger_due(session, [0], batch=1)).runs:
        order.append(Run.objects.exclude(job__in=order).get().job)
        assert done.runs == 1
    assert [job.priority for job in order] == [0, 1000, 600, 200, 0]
    assert order[0] == overdue


def test_each_time_within_the_grace_gets_a_run_of_its_own(session: Session) -> None:
    anchor = now() - 5.5 * SECOND
    job = make_job(next_run_at=anchor + SECOND, spec=every(1, anchor))
    assert trigger(session).runs == 5
    planned = list(Run.objects.filter(job=job).order_by("id").values_list("planned_at", flat=True))
    assert planned == [anchor + number * SECOND for number in range(1, 6)]
    assert next_run_at(job) == anchor + 6 * SECOND
    assert not MissedSpan.objects.exists()


def test_a_second_pass_finds_nothing_left(session: Session) -> None:
    make_due(make_job())
    assert trigger(session).runs == 1
    assert trigger(session).runs == 0


def test_an_overlapping_time_begins_as_skipped(session: Session) -> None:
    anchor = now() - 2.5 * SECOND
    job = make_job(next_run_at=anchor + SECOND, spec=every(1, anchor, overlap="skip"))
    done = trigger(session)
    assert (done.runs, done.skipped) == (1, 1)
    skipped = Run.objects.get(job=job, state="skipped")
    assert (skipped.reason, skipped.ended_from) == ("overlap_skipped", "")
    assert skipped.finished_at is not None
    assert list(LiveRun.objects.filter(job=job).values_list("planned_at", flat=True)) == [anchor + SECOND]


@pytest.mark.parametrize("state", [LiveState.READY, LiveState.RUNNING, LiveState.DELAYED, LiveState.BLOCKED])
def test_any_unfinished_planned_run_counts_as_overlap(session: Session, state: str) -> None:
    job = make_job(spec={"overlap": "skip"})
    make_run(job, state, planned_at=now() - MINUTE, trigger=Trigger.CATCH_UP)
    make_due(job)
    assert trigger(session).skipped == 1


def test_a_manual_run_is_no_overlap(session: Session) -> None:
    job = make_job(spec={"overlap": "skip"})
    make_run(job, trigger=Trigger.MANUAL, planned_at=now() - MINUTE)
    make_due(job)
    assert trigger(session).skipped == 0


def test_a_time_that_has_its_run_already_moves_the_clock_only(session: Session) -> None:
    anchor = now() - 1.5 * SECOND
    job = make_job(next_run_at=anchor + SECOND, spec=every(1, anchor))
    make_finished_run(job, planned_at=anchor + SECOND)
    assert trigger(session).runs == 0
    assert next_run_at(job) == anchor + 2 * SECOND
    assert not LiveRun.objects.filter(job=job).exists()


def test_a_finished_run_of_the_same_visit_is_no_overlap(session: Session) -> None:
    anchor = now() - 2.5 * SECOND
    job = make_job(next_run_at=anchor + SECOND, spec=every(1, anchor, overlap="skip"))
    make_finished_run(job, planned_at=anchor + SECOND)
    done = trigger(session)
    assert (done.runs, done.skipped) == (1, 0)


def test_an_id_that_belongs_to_another_job_is_reported_as_missed(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, stranger = make_job(), make_job()
    due_at = make_due(job)
    make_finished_run(stranger, planned_at=due_at)
    taken = run_id(stranger.pk, due_at)
    monkeypatch.setattr("runs.scheduler.trigger.new_runs.run_id", lambda *_: taken)
    trigger(session)
    span = MissedSpan.objects.get(job=job)
    assert (span.reason, span.begins_at) == ("id_taken", due_at)
    assert str(taken) in caplog.text


class TestGaps:
    """Times older than the grace were missed: one decision settles them all."""

    def test_by_the_policy_skip_the_gap_is_one_span(self, session: Session) -> None:
        anchor = now() - timedelta(hours=3, minutes=30)
        policy = {"policy": "skip", "window": 86_400}
        job = make_job(next_run_at=anchor + timedelta(hours=1), spec=every(3600, anchor, catch_up=policy))
        done = trigger(session)
        assert (done.runs, done.spans) == (0, 1)
        span = MissedSpan.objects.get(job=job)
        assert (span.begins_at, span.reason, span.policy) == (anchor + timedelta(hours=1), "downtime", "skip")
        assert anchor + timedelta(hours=3) < span.ends_at <= now()
        assert next_run_at(job) == anchor + timedelta(hours=4)

    def test_by_the_policy_last_the_last_missed_time_still_runs(self, session: Session) -> None:
        anchor = now() - timedelta(hours=3, minutes=30)
        job = make_job(next_run_at=anchor + timedelta(hours=1), spec=every(3600, anchor))
        trigger(session)
        last = anchor + timedelta(hours=3)
        run = Run.objects.get(job=job)
        assert (run.trigger, run.planned_at, run.pk) == (Trigger.CATCH_UP, last, run_id(job.pk, last))
        span = MissedSpan.objects.get(job=job)
        assert (span.begins_at, span.ends_at) == (anchor + timedelta(hours=1), last)

    def test_what_is_made_up_for_queues_behind_what_is_due_now(self, session: Session) -> None:
        anchor = now() - timedelta(hours=1, minutes=30)
        late = make_job(next_run_at=anchor + timedelta(hours=1), spec=every(3600, anchor))
        current = make_job()
        make_due(current)
        trigger(session)
        assert LiveRun.objects.get(job=late).rank > LiveRun.objects.get(job=current).rank

    def test_a_single_missed_time_leaves_no_span(self, session: Session) -> None:
        anchor = now() - timedelta(hours=1, minutes=30)
        make_job(next_run_at=anchor + timedelta(hours=1), spec=every(3600, anchor))
        done = trigger(session)
        assert (done.runs, done.spans) == (1, 0)

    def test_beyond_the_window_nothing_is_made_up_for(self, session: Session) -> None:
        anchor = now() - timedelta(hours=3, minutes=30)
        policy = {"policy": "last", "window": 600}
        make_job(next_run_at=anchor + timedelta(hours=1), spec=every(3600, anchor, catch_up=policy))
        done = trigger(session)
        assert (done.runs, done.spans) == (0, 1)

    def test_beyond_the_hot_period_nothing_is_made_up_for(self, session: Session) -> None:
        at = now() - timedelta(days=29)
        policy = {"policy": "last", "window": 90 * 86_400}
        spec = {"schedule": {"at": at.isoformat()}, "catch_up": policy}
        job = make_job(next_run_at=at, spec=spec)
        trigger(session)
        assert not Run.objects.filter(job=job).exists()
        assert MissedSpan.objects.filter(job=job).count() == 1

    def test_a_time_within_the_grace_takes_the_place_of_the_last_missed_one(self, session: Session) -> None:
        anchor = now() - 10.5 * MINUTE
        job = make_job(next_run_at=anchor + MINUTE, spec=every(60, anchor))
        done = trigger(session)
        assert (done.runs, done.spans) == (1, 1)
        run = Run.objects.get(job=job)
        assert (run.trigger, run.planned_at) == (Trigger.SCHEDULE, anchor + 10 * MINUTE)
        span = MissedSpan.objects.get(job=job)
        assert (span.begins_at, span.ends_at) == (anchor + MINUTE, anchor + 10 * MINUTE)

    def test_a_year_of_missed_seconds_is_settled_without_walking_through_it(self, session: Session) -> None:
        anchor = now() - timedelta(days=365)
        job = make_job(next_run_at=anchor + SECOND, spec=every(1, anchor))
        done = trigger(session)
        assert 59 <= done.runs <= 62
        assert MissedSpan.objects.get(job=job).begins_at == anchor + SECOND

    def test_a_missed_one_time_job_is_finished_with_a_span(self, session: Session) -> None:
        at = now() - timedelta(hours=1)
        policy = {"policy": "skip", "window": 86_400}
        spec = {"schedule": {"at": at.isoformat()}, "catch_up": policy}
        job = make_job(next_run_at=at, spec=spec)
        trigger(session)
        job.refresh_from_db()
        assert job.status == JobStatus.FINISHED
        assert MissedSpan.objects.get(job=job).begins_at == at


class TestChangesOfSingleTimes:
    def test_a_skipped_time_has_a_row_that_says_who_and_why(self, session: Session) -> None:
        job = make_job(spec={"overlap": "skip"})
        due_at = make_due(job)
        change = Override.objects.create(job=job, planned_at=due_at, created_by="ann", reason="no bank")
        done = trigger(session)
        assert (done.runs, done.skipped) == (0, 1)
        run = Run.objects.get(pk=run_id(job.pk, due_at))
        assert (run.state, run.reason) == ("skipped", "skipped: by ann, no bank")
        change.refresh_from_db()
        assert change.done_at is not None

    def test_a_moved_time_keeps_its_id_and_runs_at_its_new_instant(self, session: Session) -> None:
        anchor = now() - 90 * SECOND
        planned_at, moved_to = anchor + MINUTE, now() - SECOND
        job = make_job(next_run_at=moved_to, spec=every(60, anchor))
        change = Override.objects.create(job=job, planned_at=planned_at, moved_to=moved_to)
        assert trigger(session).runs == 1
        live = LiveRun.objects.get(pk=run_id(job.pk, planned_at))
        assert (live.planned_at, live.available_at, live.state) == (planned_at, moved_to, LiveState.READY)
        assert next_run_at(job) == anchor + 2 * MINUTE
        change.refresh_from_db()
        assert change.done_at is not None

    def test_until_then_it_has_no_outcome_and_the_clock_waits_for_it(self, session: Session) -> None:
        job = make_job()
        due_at = make_due(job)
        moved_to = now() + 10 * SECOND
        Override.objects.create(job=job, planned_at=due_at, moved_to=moved_to)
        done = trigger(session)
        assert (done.runs, done.spans, next_run_at(job)) == (0, 0, moved_to)


def test_a_flexible_window_lets_a_run_begin_as_delayed(session: Session) -> None:
    schedule, due_at = {"every": 3600, "jitter": 3000}, now() - SECOND
    ids = (UUID(int=number << 64) for number in count(1))
    late = next(one for one in ids if jittered(parse(schedule), one, due_at) > due_at + MINUTE)
    job = make_job(id=late, next_run_at=due_at, spec={"schedule": schedule, "anchor_at": due_at - HOUR / 2})
    assert trigger(session).runs == 1
    live = LiveRun.objects.get(pk=run_id(job.pk, due_at))
    assert (live.state, live.reason) == (LiveState.DELAYED, "flexible_window")
    assert live.wake_at == live.available_at > due_at
    assert live.rank == rank(live.available_at, job.priority)


def test_the_calendar_of_a_job_counts_as_it_is_now(session: Session) -> None:
    job = make_job()
    due_at = make_due(job)
    closed = [{"date": f"{due_at + number * DAY:%Y-%m-%d}", "name": "closed"} for number in range(1, 4)]
    calendar = Calendar.objects.create(tenant=job.tenant, name="ours", dates=closed)
    schedule = {"cron": f"{due_at:%S %M %H} * * *", "calendar": {"name": "ours", "on_closed": "exclude"}}
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        job.versions.update(schedule=schedule, calendar=calendar)
    trigger(session)
    assert next_run_at(job) == due_at.replace(microsecond=0) + 4 * DAY


class TestEndOfAJob:
    def test_a_one_time_job_is_finished_by_its_run(self, session: Session) -> None:
        at = now() - SECOND
        job = make_job(next_run_at=at, spec={"schedule": {"at": at.isoformat()}})
        assert trigger(session).finished == 1
        job.refresh_from_db()
        assert (job.status, next_run_at(job)) == (JobStatus.FINISHED, None)
        assert Run.objects.filter(pk=run_id(job.pk, at)).exists()

    def test_a_schedule_without_a_further_time_finishes_its_job(self, session: Session) -> None:
        anchor = now() - 1.5 * SECOND
        schedule = {"every": 1, "ends_at": (anchor + SECOND).isoformat()}
        job = make_job(next_run_at=anchor + SECOND, spec={"schedule": schedule, "anchor_at": anchor})
        trigger(session)
        job.refresh_from_db()
        assert job.status == JobStatus.FINISHED

    def test_a_paused_job_has_no_planned_times(self, session: Session) -> None:
        job = make_job(status=JobStatus.PAUSED)
        make_due(job)
        assert trigger(session).runs == 0
        job.refresh_from_db()
        assert (job.status, next_run_at(job)) == (JobStatus.PAUSED, None)


class TestPoison:
    """One job never costs another its time."""

    def test_a_schedule_that_raises_makes_its_job_unrunnable_and_no_other(self, session: Session) -> None:
        poison = make_job(spec={"schedule": {"cron": "0 0 * * *", "timezone": "Europe/Atlantis"}})
        healthy = make_job()
        due_at = make_due(poison, now() - 2 * SECOND)
        make_due(healthy)
        done = trigger(session)
        assert (done.runs, done.unrunnable) == (1, 1)
        poison.refresh_from_db()
        assert (poison.status, next_run_at(poison)) == (JobStatus.UNRUNNABLE, None)
        assert "Europe/Atlantis" in poison.status_reason
        entry = AuditEntry.objects.get(object_id=str(poison.pk))
        assert (entry.action, entry.tenant_id) == ("job.unrunnable", poison.tenant_id)
        span = MissedSpan.objects.get(job=poison)
        # What follows the span is made up for by whoever resumes the job: those times are after `status_at`.
        assert (span.begins_at, span.ends_at) == (due_at, poison.status_at + MILLISECOND)

    def test_a_row_the_database_refuses_makes_its_job_unrunnable_and_no_other(self, session: Session) -> None:
        jobs = [make_job() for _ in range(9)]
        poison = make_job(spec={"target_key": "poison"})
        for job in [*jobs, poison]:
            make_due(job)
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE beatkeeper_live_run ADD CHECK (target_key <> 'poison')")
        done = trigger(session)
        assert (done.runs, done.unrunnable) == (9, 1)
        poison.refresh_from_db()
        assert poison.status == JobStatus.UNRUNNABLE
        assert not Run.objects.filter(job=poison).exists()

    def test_a_missing_partition_is_nobodys_fault(self, session: Session) -> None:
        job = make_job()
        make_due(job)
        with connection.cursor() as cursor:
            for day in (now(), now() - SECOND):
                cursor.execute(f"DROP TABLE IF EXISTS beatkeeper_run_{day:%Y%m%d}")
        with pytest.raises(NoPartition):
            trigger(session)
        job.refresh_from_db()
        assert job.status == JobStatus.ACTIVE


def test_an_edit_triggers_what_is_due_under_the_old_schedule(session: Session) -> None:
    job, other = make_job(), make_job()
    due_at = make_due(job)
    make_due(other)
    assert trigger_job(session, job.pk, now()).runs == 1
    assert Run.objects.filter(pk=run_id(job.pk, due_at)).exists()
    assert not Run.objects.filter(job=other).exists()


def test_an_edit_of_a_job_that_is_not_due_triggers_nothing(session: Session) -> None:
    job = make_job(next_run_at=now() + MINUTE)
    assert trigger_job(session, job.pk, now()).runs == 0


def test_a_session_that_did_not_take_the_locks_triggers_nothing(session: Session) -> None:
    make_due(make_job())
    with pytest.raises(LostLocks):
        trigger(session, pid=session.info.backend_pid + 1)
    assert not Run.objects.exists()


def test_a_slice_that_gave_all_it_may_is_looked_at_again(session: Session) -> None:
    for _ in range(3):
        make_due(make_job())
    assert trigger(session, batch=64).more
    assert not trigger(session, batch=6400).more


def test_a_run_of_a_job_with_a_limit_is_gated(session: Session) -> None:
    job = make_job(max_concurrency=2)
    make_due(job)
    trigger(session)
    assert LiveRun.objects.get(job=job).gated
