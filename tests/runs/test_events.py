"""Events reach their listeners after the commit, in one piece per pass, and no listener can do harm."""

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest
from django.db import transaction

from jobs.services.definition import edit_job
from runs import events
from runs.events import (
    CallbacksMissed,
    Event,
    EventName,
    ExpiredWorker,
    JobUnrunnable,
    QueuesHeld,
    RunsCancelled,
    RunsCreated,
    RunsDied,
    RunsLost,
    RunsQueued,
    WorkersExpired,
    emit,
    emit_on_commit,
)
from runs.models import DeadLetter, Queue
from runs.reasons import Reason
from runs.scheduler.dispatch.dispatch import dispatch_pool
from runs.scheduler.partitions.lock_session import connect
from runs.scheduler.recovery.dead_runs import DeadRunRound, announce_dead_runs
from runs.scheduler.recovery.lost_attempts import fail as fail_claims
from runs.scheduler.trigger import trigger
from runs.scheduler.trigger.trigger import trigger_due
from runs.services.runs import cancel_run, run_now
from runs.states import LiveState
from scheduler_project.sdk.ledger.postgres import PostgresLedger
from tests.races.staging import Session, dsn
from tests.runs.ledger.claims import DEAD, claim_next, failed, ledger, tell
from tests.support.factories import make_dead, make_due, make_job, make_run, make_worker, now, post_job

__all__ = ["ledger"]
pytestmark = pytest.mark.django_db(transaction=True)
ALL = range(64)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def own_listeners() -> Iterator[None]:
    """End what a test adds with the test."""
    with patch.object(events, "_listeners", list(events._listeners)):
        yield


@pytest.fixture
def emitted() -> list[Event]:
    """Collect what is emitted, in its order."""
    found: list[Event] = []
    events.listen(found.append)
    return found


@pytest.fixture
def session() -> Iterator[Session]:
    with connect(dsn(), "events", 30) as connection:
        yield connection


def of(emitted: list[Event], kind: type[Event]) -> list[Any]:
    return [event for event in emitted if isinstance(event, kind)]


class TestListeners:
    def test_one_that_raises_stops_neither_the_others_nor_the_pass(
        self, emitted: list[Event], session: Session, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(event: Event) -> None:
            raise RuntimeError("the pager is away")

        events.listen(broken)
        events._listeners.insert(0, events._listeners.pop())
        make_due(make_job(), now() - SECOND)
        assert trigger_due(session, ALL).runs == 1
        assert of(emitted, RunsCreated)
        assert "a listener failed at run.created" in caplog.text and "the pager is away" in caplog.text

    def test_one_that_is_added_twice_hears_once(self, emitted: list[Event]) -> None:
        events.listen(emitted.append)
        events.listen(emitted.append)
        emit(RunsQueued(pool_id=1, runs=2))
        assert len(emitted) == 1

    def test_each_event_has_its_name_and_its_lines(self) -> None:
        def kinds(kind: type[Event]) -> Iterator[type[Event]]:
            for one in kind.__subclasses__():
                yield one
                yield from kinds(one)

        assert sorted(kind.name for kind in kinds(Event)) == sorted(EventName)
        assert list(RunsQueued(pool_id=1, runs=2).lines()) == ["run.queued pool_id=1 runs=2"]

    def test_the_log_shows_a_line_for_each_run(self, caplog: pytest.LogCaptureFixture) -> None:
        one, other = UUID(int=1), UUID(int=2)
        emit(RunsLost(states={one: "delayed", other: "dead"}, line="The worker was lost."))
        emit(CallbacksMissed(states={one: "dead"}))
        assert [(record.levelname, record.message) for record in caplog.records] == [
            ("WARNING", f"run {one} lost its attempt and is delayed: The worker was lost."),
            ("WARNING", f"run {other} lost its attempt and is dead: The worker was lost."),
            ("WARNING", f"run {one} got no callback in time and is dead"),
        ]


class TestAfterCommit:
    def test_a_service_that_is_rolled_back_reports_nothing(self, emitted: list[Event]) -> None:
        job = post_job()
        emitted.clear()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            run_now(job)
            1 / 0  # noqa: B018
        assert not emitted
        run = run_now(job)
        assert of(emitted, RunsCreated) == [RunsCreated(trigger="manual", runs=1, run_ids=[run.pk])]

    def test_a_service_reports_when_the_outermost_transaction_commits(self, emitted: list[Event]) -> None:
        with transaction.atomic():
            emit_on_commit(RunsQueued(pool_id=1, runs=1))
            assert not emitted
        assert len(emitted) == 1

    def test_a_pass_that_is_rolled_back_reports_nothing(
        self, emitted: list[Event], session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its last write fails, long after a job was made unrunnable and runs were made."""
        make_due(make_job(), now() - SECOND)
        make_due(make_job(spec={"schedule": {"cron": "no cron"}}), now() - SECOND)
        monkeypatch.setattr(trigger, "halve", fail_after(trigger.halve))
        with pytest.raises(ZeroDivisionError):
            trigger_due(session, ALL)
        assert not emitted
        monkeypatch.undo()
        assert trigger_due(session, ALL).unrunnable == 1
        assert [kind.name.value for kind in emitted] == ["run.created", "job.unrunnable"]

    def test_it_reports_only_when_it_is_over(self, emitted: list[Event], session: Session) -> None:
        seen: list[int] = []

        def look(event: Event) -> None:
            seen.append(session.info.transaction_status)

        events.listen(look)
        job = make_job()
        make_due(job, now() - SECOND)
        trigger_due(session, ALL)
        dispatch_pool(session, job.pool_id, now())
        assert len(seen) == len(emitted) >= 2 and set(seen) == {0}, "0: no transaction is open"

    def test_an_edit_reports_what_it_triggers_once_it_commits(self, emitted: list[Event]) -> None:
        job = post_job(schedule={"every": 3600})
        make_due(job, now() - SECOND)
        emitted.clear()
        with transaction.atomic():
            edit_job(job, {"schedule": {"every": 7200}})
            assert not emitted
        assert of(emitted, RunsCreated) == [RunsCreated(trigger="schedule", runs=1)]


def fail_after(act: Any) -> Any:
    def failing(*arguments: Any) -> None:
        act(*arguments)
        raise ZeroDivisionError

    return failing


class TestPasses:
    def test_one_event_a_pass_however_many_runs(self, emitted: list[Event], session: Session) -> None:
        job = make_job()
        for _ in range(3):
            make_due(make_job(tenant=job.tenant, pool=job.pool), now() - SECOND)
        trigger_due(session, ALL)
        make_worker(job.pool, slots=10)
        dispatch_pool(session, job.pool_id, now() + SECOND)
        assert of(emitted, RunsCreated) == [RunsCreated(trigger="schedule", runs=3)]
        assert sum(event.runs for event in of(emitted, RunsQueued)) <= 3

    def test_a_held_queue_is_reported_once(self, emitted: list[Event], session: Session) -> None:
        live = make_run(make_job())
        for _ in range(2):
            dispatch_pool(session, live.pool_id, now())
        assert of(emitted, QueuesHeld) == [
            QueuesHeld(pool_id=live.pool_id, reasons={live.tenant_id: Reason.NO_LIVE_WORKER})
        ]

    def test_a_notice_holds_no_queue(self, emitted: list[Event], session: Session) -> None:
        live = make_run(make_job())
        make_worker(live.run.job.pool)
        dispatch_pool(session, live.pool_id, now(), notice=Reason.BROKER_AWAY)
        assert Queue.objects.get().reason == Reason.BROKER_AWAY
        assert not of(emitted, QueuesHeld)

    def test_a_lost_attempt_is_reported_with_what_became_of_the_run(
        self, emitted: list[Event], session: Session
    ) -> None:
        live = make_run(make_job(), LiveState.RUNNING)
        states = fail_claims(session, {live.pk: live.claim_seq}, "The worker was lost.")
        assert of(emitted, RunsLost) == [RunsLost(states=states, line="The worker was lost.")]
        assert set(states) == {live.pk}
        assert not of(emitted, WorkersExpired)

    def test_a_name_begins_no_line_and_no_colour_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        worker = ExpiredWorker(UUID(int=1), "w\x1b[31m\nERROR", 1)
        emit(WorkersExpired(workers=[worker]))
        assert "worker w\\u001b[31m\\nERROR of pool 1" in caplog.text

    def test_a_cancel_is_reported(self, emitted: list[Event]) -> None:
        live = make_run(make_job())
        cancel_run(live.run, "enough")
        assert of(emitted, RunsCancelled) == [
            RunsCancelled(ended=[live.pk], requested=[], reason=Reason.CANCELLED.with_words("enough"))
        ]

    def test_a_job_that_cannot_be_planned_is_reported(self, emitted: list[Event], session: Session) -> None:
        job = make_job(spec={"schedule": {"cron": "no cron"}})
        make_due(job, now() - SECOND)
        trigger_due(session, ALL)
        [unrunnable] = of(emitted, JobUnrunnable)
        assert unrunnable.job_id == job.pk and "cannot be reckoned" in unrunnable.reason


class TestDeadRuns:
    def test_a_run_that_dies_in_a_worker_is_reported_once(
        self, emitted: list[Event], session: Session, ledger: PostgresLedger
    ) -> None:
        live = make_run(post_job(), LiveState.QUEUED)
        claim = claim_next(ledger, live.run.job)
        assert claim is not None
        tell(ledger, claim, failed(), DEAD)
        assert [announce_dead_runs(session, DeadRunRound()) for _ in range(2)] == [1, 0]
        [died] = of(emitted, RunsDied)
        [dead] = died.dead
        assert (dead.run_id, dead.job_id, dead.tenant_id) == (live.pk, live.job_id, live.tenant_id)
        assert dead.error_type and dead.fingerprint
        assert DeadLetter.objects.get().announced

    def test_one_whose_report_was_not_noted_is_reported_again(
        self, emitted: list[Event], session: Session, ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live = make_run(post_job(), LiveState.QUEUED)
        claim = claim_next(ledger, live.run.job)
        assert claim is not None
        tell(ledger, claim, failed(), DEAD)
        monkeypatch.setattr("runs.scheduler.recovery.dead_runs.change", fail_after(lambda *_: None))
        with pytest.raises(ZeroDivisionError):
            announce_dead_runs(session, DeadRunRound())
        monkeypatch.undo()
        announce_dead_runs(session, DeadRunRound())
        assert len(of(emitted, RunsDied)) == 2

    def test_one_that_a_listener_could_not_accept_is_reported_again(
        self, emitted: list[Event], session: Session
    ) -> None:
        make_dead(make_job())
        calls: list[Event] = []

        def away_at_first(event: Event) -> None:
            calls.append(event)
            if len(calls) == 1:
                raise ConnectionError("the pager is away")

        events.listen(away_at_first)
        assert [announce_dead_runs(session, DeadRunRound()) for _ in range(3)] == [1, 1, 0]
        assert len(calls) == 2

    def test_newer_ones_reach_listeners_though_one_accepts_nothing(
        self, emitted: list[Event], session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("runs.scheduler.recovery.dead_runs.MAX_ANNOUNCED", 2)
        job, progress = make_job(), DeadRunRound()
        died = [make_dead(job).pk for _ in range(5)]

        def refuse(event: Event) -> None:
            raise ConnectionError("the pager is away")

        events.listen(refuse)
        assert [announce_dead_runs(session, progress) for _ in range(4)] == [2, 2, 1, 2]
        events._listeners.remove(refuse)
        reported = [one.run_id for event in of(emitted, RunsDied) for one in event.dead]
        assert reported == [*died, *died[:2]]
        assert DeadLetter.objects.filter(announced=False).count() == 5
        assert [announce_dead_runs(session, progress) for _ in range(3)] == [2, 1, 2]
        assert not DeadLetter.objects.filter(announced=False).exists()

    def test_the_log_names_it(self, caplog: pytest.LogCaptureFixture, session: Session) -> None:
        caplog.set_level(logging.INFO, "runs.events")
        run = make_dead(make_job())
        announce_dead_runs(session, DeadRunRound())
        assert f"run {run.pk} of job {run.job_id} is dead" in caplog.text
