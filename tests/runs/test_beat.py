"""What celery beat does to a scheduler, and what its loops do to themselves."""

import threading
from collections.abc import Iterator

import pytest
from django.conf import LazySettings

from runs.beat import PartitionedScheduler
from runs.loops import Loop
from runs.slices import LockSession
from scheduler_project.celery import app
from tests.concurrency.staging import dsn
from tests.waiting import wait_until


class Passes:
    """Work that a test watches and upsets."""

    def __init__(self) -> None:
        self.sessions: list[LockSession] = []
        self.count = 0
        self.upset: BaseException | None = None

    def begin(self, session: LockSession) -> "Passes":
        self.sessions.append(session)
        return self

    def step(self) -> float:
        if self.upset is not None:
            upset, self.upset = self.upset, None
            raise upset
        self.sessions[-1].connection.execute("SELECT 1")
        self.count += 1
        return 0.01


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


def test_the_instance_for_the_banner_starts_nothing() -> None:
    before = threading.active_count()
    scheduler = PartitionedScheduler(app, lazy=True)
    assert "64" in scheduler.info
    assert scheduler.loops == []
    scheduler.close()
    assert threading.active_count() == before


def test_all_loops_are_at_work_and_end_when_it_is_closed_twice(scheduler: PartitionedScheduler) -> None:
    wait_until(lambda: all(loop.last_success for loop in scheduler.loops), 10, "a pass of each loop")
    assert [loop.name for loop in scheduler.loops] == ["trigger", "dispatch", "rescue"]
    assert scheduler.publisher is None
    scheduler.close()
    scheduler.close()


def test_tick_never_raises(scheduler: PartitionedScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Loop) -> None:
        raise RuntimeError("supervising failed")

    monkeypatch.setattr(Loop, "supervise", fail)
    assert 0 < scheduler.tick() < 1
