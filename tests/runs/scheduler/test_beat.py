"""What celery beat does to a scheduler, and what its loops do to themselves."""

import threading
from collections.abc import Iterator

import pytest
from django.conf import LazySettings

from runs.beat import PartitionedScheduler
from runs.scheduler.loop import Loop, RecentMaximum
from runs.scheduler.observer import FinishedPass
from runs.scheduler.partitions.lock_session import LockSession
from runs.scheduler.trigger_loop import TriggerLoop
from scheduler_project.celery import app
from tests.races.staging import dsn
from tests.support.ports import free_port
from tests.support.waiting import wait_until


class Passes:
    """Work that a test watches and upsets."""

    def __init__(self) -> None:
        self.sessions: list[LockSession] = []
        self.count = self.ends = 0
        self.upset: BaseException | None = None
        self.hang: threading.Event | None = None
        self.finished: list[FinishedPass] = []

    def begin(self, session: LockSession) -> "Passes":
        self.sessions.append(session)
        return self

    def step(self) -> float:
        if self.upset is not None:
            upset, self.upset = self.upset, None
            raise upset
        if self.hang is not None:
            self.hang.wait(30)
        self.sessions[-1].connection.execute("SELECT 1")
        self.count += 1
        return 0.01

    def holds(self) -> int:
        return 7

    def end(self) -> None:
        self.ends += 1


@pytest.fixture
def passes() -> Passes:
    return Passes()


@pytest.fixture
def loop(db: None, passes: Passes) -> Iterator[Loop]:
    loop = Loop("test", dsn(), passes.begin)
    loop.start()
    wait_until(lambda: passes.count > 0, 10, "the first pass")
    yield loop
    loop.stopping = True
    loop.join(5)
    assert not loop.alive


@pytest.fixture
def scheduler(transactional_db: None, settings: LazySettings) -> Iterator[PartitionedScheduler]:
    settings.DATABASE_DIRECT_URL = dsn()
    scheduler = PartitionedScheduler(app, lazy=False)
    yield scheduler
    scheduler.close()
    for loop in scheduler.loops:
        loop.join(10)
        assert not loop.alive


def test_a_failed_pass_is_followed_by_one_on_a_new_session(loop: Loop, passes: Passes) -> None:
    before = passes.count
    passes.upset = ValueError("a bad pass")
    wait_until(lambda: len(passes.sessions) == 2 and passes.count > before, 10, "another session")
    assert passes.sessions[0].pid != passes.sessions[1].pid
    assert loop.failures == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_is_started_again(loop: Loop, passes: Passes) -> None:
    passes.upset = SystemExit()
    wait_until(lambda: not loop.alive, 10, "the end of the thread")
    loop.supervise()
    wait_until(lambda: len(passes.sessions) == 2, 10, "the next thread")


def test_a_loop_that_hears_nothing_is_cut_off(
    loop: Loop, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loop, "silent_for", lambda _: 1000.0)
    loop.supervise()
    monkeypatch.undo()
    wait_until(lambda: len(passes.sessions) == 2, 10, "another session")
    assert loop.alive


def test_a_thread_that_hangs_in_our_own_code_is_replaced_and_changes_nothing_when_it_wakes(
    loop: Loop, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes.hang = hanging = threading.Event()
    before = loop._thread
    assert before is not None
    monkeypatch.setattr(Loop, "silent_for", lambda _: 1000.0)
    loop.supervise()
    assert loop._thread is before
    loop.supervise()
    monkeypatch.undo()
    passes.hang = None
    wait_until(lambda: len(passes.sessions) == 2, 10, "another session")
    wait_until(lambda: passes.count > 0, 10, "passes of the new thread")
    assert loop._thread is not before
    hanging.set()
    before.join(10)
    assert not before.is_alive() and loop.alive and loop.failures == 0
    assert len(passes.sessions) == 2


def test_a_clean_stop_is_noticed_in_the_middle_of_a_pause(loop: Loop, passes: Passes) -> None:
    assert loop.holds == 7
    passes.step = lambda: 30.0  # type: ignore[method-assign]
    wait_until(lambda: loop._wake.is_set() is False and loop.last_success, 15, "the pause")
    loop.stopping = True
    loop.join(10)
    assert not loop.alive and passes.ends == 1


def test_the_longest_pass_is_forgotten_after_a_while() -> None:
    longest = RecentMaximum()
    longest.add(100.0, 3.0)
    longest.add(110.0, 0.1)
    assert longest.seconds == 3.0
    longest.add(170.0, 0.2)
    assert longest.seconds == 3.0
    longest.add(240.0, 0.1)
    assert longest.seconds == 0.2


def test_the_instance_for_the_banner_starts_nothing() -> None:
    before = threading.active_count()
    scheduler = PartitionedScheduler(app, lazy=True)
    assert "64" in scheduler.info
    assert scheduler.loops == []
    scheduler.close()
    assert threading.active_count() == before


def test_all_loops_are_at_work_and_end_when_it_is_closed_twice(scheduler: PartitionedScheduler) -> None:
    wait_until(lambda: all(loop.last_success for loop in scheduler.loops), 10, "a pass of each loop")
    assert [loop.name for loop in scheduler.loops] == ["trigger", "dispatch", "recovery", "status"]
    assert scheduler.publishers is not None and not scheduler.publishers.by_broker
    scheduler.close()
    scheduler.close()


def test_a_database_that_is_away_at_the_start_is_waited_for(
    settings: LazySettings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DATABASE_DIRECT_URL = f"postgresql://root:xyzzy@127.0.0.1:{free_port()}/nowhere"
    scheduler = PartitionedScheduler(app, lazy=False)
    wait_until(lambda: all(loop.failures > 1 for loop in scheduler.loops), 10, "failures of each loop")
    assert all(loop.alive for loop in scheduler.loops) and scheduler.tick() > 0
    scheduler.close()
    for loop in scheduler.loops:
        loop.join(10)
        assert not loop.alive
    assert "the database does not answer yet" in caplog.text and "xyzzy" not in caplog.text


def test_what_a_pass_takes_on_outlives_its_session(scheduler: PartitionedScheduler) -> None:
    with LockSession(dsn(), "one") as one, LockSession(dsn(), "other") as other:
        first, second = (scheduler.loops[0].begin(session) for session in (one, other))
        assert isinstance(first, TriggerLoop) and isinstance(second, TriggerLoop)
        assert first.batch is second.batch and first.catch_up_batch is second.catch_up_batch


def test_tick_never_raises(scheduler: PartitionedScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Loop) -> None:
        raise RuntimeError("supervising failed")

    monkeypatch.setattr(Loop, "supervise", fail)
    assert 0 < scheduler.tick() < 1
