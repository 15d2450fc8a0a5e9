"""Each write of a state is guarded: what somebody else moved first stays as it is."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from runs.models import LiveRun, Run
from runs.states import LiveState
from runs.transitions import (
    EndedAttempt,
    cancel_live_runs,
    end_attempts,
    mark_blocked,
    mark_queued,
    promote_delayed,
)
from scheduler_project.sdk.ids import EPOCH
from scheduler_project.sdk.outcomes import worker_lost
from tests.support.factories import make_finished_run, make_job, make_run, make_worker, now

Session = psycopg.Connection[Any]
LOST = worker_lost("lost", EPOCH, EPOCH)


def ctid(session: Session, run: LiveRun) -> str:
    query = "SELECT ctid::text FROM beatkeeper_live_run WHERE id = %s"
    return str(session.execute(query, [run.pk]).fetchall()[0][0])


def test_only_ready_runs_are_marked_queued(session: Session) -> None:
    job = make_job()
    ready, delayed = make_run(job), make_run(job, LiveState.DELAYED)
    assert mark_queued(session, [ctid(session, ready), ctid(session, delayed)], EPOCH) == 1
    ready.refresh_from_db()
    assert (ready.state, ready.queued_at is None) == (LiveState.QUEUED, False)
    assert mark_queued(session, [ctid(session, ready)], EPOCH) == 0
    assert mark_queued(session, [], EPOCH) == 0


def test_only_ready_runs_are_blocked(session: Session) -> None:
    job = make_job()
    ready, queued = make_run(job), make_run(job, LiveState.QUEUED)
    ctids = [ctid(session, ready), ctid(session, queued)]
    assert mark_blocked(session, dict.fromkeys(ctids, "paused")) == 1
    assert mark_blocked(session, {}) == 0
    ready.refresh_from_db()
    assert (ready.state, ready.reason) == (LiveState.BLOCKED, "paused")


def test_only_delayed_runs_are_woken(session: Session) -> None:
    job = make_job()
    overdue = now() - timedelta(seconds=1)
    running = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool), wake_at=overdue)
    make_run(job, LiveState.DELAYED, wake_at=overdue)
    assert promote_delayed(session, now(), 10) == 1
    running.refresh_from_db()
    assert running.state == LiveState.RUNNING


@pytest.mark.parametrize("verdict", ["delayed", "dead"])
def test_a_claim_that_is_another_by_now_is_not_lost(session: Session, verdict: str) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    run = make_run(job, LiveState.RUNNING, worker=worker, claim_seq=3)
    assert end_attempts(session, [EndedAttempt(run.pk, 2, worker.pk, verdict, 0.0)], LOST) == {}
    run.refresh_from_db()
    assert run.state == LiveState.RUNNING
    assert Run.objects.get(pk=run.pk).state is None


def test_several_claims_are_lost_by_one_statement(session: Session) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    start = now()
    runs = [
        make_run(job, LiveState.RUNNING, worker=worker, planned_at=start - timedelta(days=days))
        for days in range(3)
    ]
    lost = [EndedAttempt(run.pk, 1, worker.pk, "dead" if i else "delayed", 5.0) for i, run in enumerate(runs)]
    assert end_attempts(session, lost, LOST) == {
        runs[0].pk: "delayed",
        runs[1].pk: "dead",
        runs[2].pk: "dead",
    }
    assert list(LiveRun.objects.values_list("pk", flat=True)) == [runs[0].pk]
    assert Run.objects.filter(state="dead", reason="worker_lost", error_line="lost").count() == 2


def test_a_lost_run_keeps_its_place_by_when_it_may_go_again(session: Session) -> None:
    job = make_job(priority=800)
    worker = make_worker(job.pool)
    run = make_run(job, LiveState.RUNNING, worker=worker)
    before = run.rank
    end_attempts(session, [EndedAttempt(run.pk, 1, worker.pk, "delayed", 60.0)], LOST)
    run.refresh_from_db()
    assert run.wake_at == run.available_at
    assert run.rank == pytest.approx(int(run.available_at.timestamp() * 1000) - 800 * 300, abs=2)
    assert run.rank - before > 59_000


@pytest.mark.parametrize(
    "state",
    [LiveState.READY, LiveState.QUEUED, LiveState.DELAYED, LiveState.BLOCKED, LiveState.WAITING_CALLBACK],
)
def test_what_no_worker_has_is_cancelled_at_once(session: Session, state: str) -> None:
    run = make_run(make_job(), state)
    done = cancel_live_runs(session, [run.pk], "not wanted")
    assert (done.ended, done.requested) == ([run.pk], [])
    ended = Run.objects.get(pk=run.pk)
    assert (ended.state, ended.ended_from, ended.reason) == ("cancelled", state, "not wanted")
    assert not LiveRun.objects.filter(pk=run.pk).exists()


@pytest.mark.parametrize("state", [LiveState.READY, LiveState.QUEUED, LiveState.WAITING_CALLBACK])
def test_what_is_cancelled_at_once_keeps_when_it_was_queued(session: Session, state: str) -> None:
    live = make_run(make_job(), state)
    cancel_live_runs(session, [live.pk], "not wanted")
    ended = Run.objects.get(pk=live.pk)
    assert ended.queued_at == live.queued_at and (ended.queued_at is None) == (state == LiveState.READY)
    assert ended.cancel_requested_at is not None and ended.finished_at is not None
    assert ended.cancel_requested_at <= ended.finished_at and ended.cancel_acknowledged_at is None


def test_a_lost_run_that_was_being_cancelled_keeps_both_instants(session: Session) -> None:
    job = make_job()
    worker = make_worker(job.pool)
    live = make_run(job, LiveState.RUNNING, worker=worker)
    cancel_live_runs(session, [live.pk], "not wanted")
    LiveRun.objects.filter(pk=live.pk).update(cancel_acknowledged_at=now())
    live.refresh_from_db()
    end_attempts(session, [EndedAttempt(live.pk, 1, worker.pk, "delayed", 5.0)], LOST)
    ended = Run.objects.get(pk=live.pk)
    assert ended.state == "cancelled"
    for name in ("queued_at", "started_at", "cancel_requested_at", "cancel_acknowledged_at"):
        assert getattr(ended, name) == getattr(live, name) is not None, name


def test_what_runs_is_asked_to_stop_once(session: Session) -> None:
    job = make_job()
    run = make_run(job, LiveState.RUNNING, worker=make_worker(job.pool))
    assert cancel_live_runs(session, [run.pk], "first").requested == [run.pk]
    cancel_live_runs(session, [run.pk], "second")
    run.refresh_from_db()
    assert run.cancel_requested_at is not None
    assert (run.state, run.cancel_reason) == (LiveState.RUNNING, "first")


def test_what_has_ended_is_not_cancelled(session: Session) -> None:
    done = cancel_live_runs(session, [make_finished_run(make_job()).pk], "too late")
    assert (done.ended, done.requested) == ([], [])
