"""What a scheduler tells of itself, and that it tells no more once it has left."""

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from runs import upkeep
from runs.loops import Loop
from runs.models import SchedulerNode
from runs.presence import Presence, Telling
from runs.slices import LockSession
from scheduler_project.sdk import clock_skew
from tests.concurrency.staging import dsn
from tests.factories import now
from tests.runs.test_beat import Passes
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def presence() -> Iterator[Presence]:
    loops = [Loop(name, dsn(), Passes().begin) for name in ("trigger", "dispatch", "rescue")]
    yield Presence(loops)
    for loop in loops:
        loop.stopping = True
        loop.join(5)


def test_a_scheduler_tells_what_it_holds_and_how_its_loops_are_doing(presence: Presence) -> None:
    trigger = presence.loops[0]
    trigger.start()
    wait_until(lambda: trigger.last_success, 10, "a pass")
    with LockSession(dsn(), "presence") as session:
        assert Telling(session, presence).step() > 0
    node = SchedulerNode.objects.get()
    assert (node.job_slices, node.pools, node.rescues, node.left_at) == (7, 0, False, None)
    assert node.loops["trigger"]["failures"] == 0
    assert 0 <= node.loops["trigger"]["success_seconds_ago"] < 5
    assert 0 <= node.loops["trigger"]["longest_seconds"] < 5
    assert node.loops["dispatch"]["success_seconds_ago"] is None


def test_it_is_told_again_by_the_same_row_and_skew_by_the_next_telling(
    presence: Presence, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 3600)
    with LockSession(dsn(), "presence") as session:
        telling = Telling(session, presence)
        telling.step()
        first = SchedulerNode.objects.get()
        telling.step()
        telling.step()
    node = SchedulerNode.objects.get()
    assert node.last_seen_at > first.last_seen_at and node.started_at == first.started_at
    assert node.skew_ms is not None and -3_601_000 < node.skew_ms < -3_599_000
    assert [record.levelname for record in caplog.records if "60 min behind" in record.message] == ["WARNING"]


def test_a_clock_that_is_right_is_no_reason_to_speak(
    presence: Presence, caplog: pytest.LogCaptureFixture
) -> None:
    presence.notice_skew(clock_skew.LIMIT_MS - 1)
    presence.notice_skew(None)
    assert not caplog.records and presence.skew_ms == clock_skew.LIMIT_MS - 1


def test_a_clean_stop_is_told_and_old_ones_are_forgotten(presence: Presence) -> None:
    with LockSession(dsn(), "presence") as session:
        telling = Telling(session, presence)
        telling.step()
        telling.end()
        node = SchedulerNode.objects.get()
        assert node.left_at is not None and node.job_slices == 0
        assert upkeep.forget_schedulers(session.connection, now()) == 0
        SchedulerNode.objects.update(last_seen_at=now() - timedelta(days=2))
        assert upkeep.forget_schedulers(session.connection, now()) == 1


def test_a_failure_of_the_session_begins_no_new_incarnation(presence: Presence) -> None:
    for _ in range(2):
        with LockSession(dsn(), "presence") as session:
            Telling(session, presence).step()
    assert SchedulerNode.objects.count() == 1
