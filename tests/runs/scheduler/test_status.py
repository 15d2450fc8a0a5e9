"""What a scheduler tells of itself, and that it tells no more once it has left."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from runs.models import SchedulerNode
from runs.scheduler import maintenance
from runs.scheduler.loop import Loop
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.status import SchedulerStatus, StatusLoop
from scheduler_project.sdk.ledger import clock_skew
from tests.races.staging import dsn
from tests.runs.scheduler.test_beat import Passes
from tests.support.factories import now
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def status() -> Iterator[SchedulerStatus]:
    loops = [Loop(name, dsn(), Passes().begin) for name in ("trigger", "dispatch", "recovery")]
    yield SchedulerStatus(loops)
    for loop in loops:
        loop.stopping = True
        loop.join(5)


def test_a_scheduler_tells_what_it_holds_and_how_its_loops_are_doing(status: SchedulerStatus) -> None:
    trigger = status.loops[0]
    trigger.start()
    wait_until(lambda: trigger.last_success, 10, "a pass")
    with LockSession(dsn(), "status") as session:
        assert StatusLoop(session, status).step() > 0
    node = SchedulerNode.objects.get()
    assert (node.job_slices, node.pools, node.runs_recovery, node.left_at) == (7, 0, False, None)
    assert node.loops["trigger"]["failures"] == 0
    assert 0 <= node.loops["trigger"]["success_seconds_ago"] < 5
    assert 0 <= node.loops["trigger"]["longest_seconds"] < 5
    assert node.loops["dispatch"]["success_seconds_ago"] is None


def test_it_is_reported_again_by_the_same_row_and_skew_by_the_next_status_loop(
    status: SchedulerStatus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600)
    with LockSession(dsn(), "status") as session:
        status_loop = StatusLoop(session, status)
        status_loop.step()
        first = SchedulerNode.objects.get()
        status_loop.step()
        status_loop.step()
    node = SchedulerNode.objects.get()
    assert node.last_seen_at > first.last_seen_at and node.started_at == first.started_at
    assert node.skew_ms is not None and -3_601_000 < node.skew_ms < -3_599_000
    assert [record.levelname for record in caplog.records if "60 min behind" in record.message] == ["WARNING"]


def test_a_clock_that_is_right_is_no_reason_to_speak(
    status: SchedulerStatus, caplog: pytest.LogCaptureFixture
) -> None:
    status.note_skew(clock_skew.LIMIT_MS - 1)
    status.note_skew(None)
    assert not caplog.records and status.skew_ms == clock_skew.LIMIT_MS - 1


def test_a_clean_stop_is_reported_and_old_ones_are_forgotten(status: SchedulerStatus) -> None:
    with LockSession(dsn(), "status") as session:
        status_loop = StatusLoop(session, status)
        status_loop.step()
        status_loop.end()
        node = SchedulerNode.objects.get()
        assert node.left_at is not None and node.job_slices == 0
        assert maintenance.purge(session.connection, now())["purge_schedulers"] == 0
        SchedulerNode.objects.update(last_seen_at=now() - timedelta(days=2))
        assert maintenance.purge(session.connection, now())["purge_schedulers"] == 1


def test_a_failure_of_the_session_begins_no_new_incarnation(status: SchedulerStatus) -> None:
    for _ in range(2):
        with LockSession(dsn(), "status") as session:
            StatusLoop(session, status).step()
    assert SchedulerNode.objects.count() == 1
