"""How long a sign of life has stood still, of the time in which it was looked at."""

import pytest

from scheduler_project.sdk.process import processes
from scheduler_project.sdk.process.liveness import MAX_LOOK_SECONDS, HangDetector


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(processes, "boottime", lambda: self.now)

    def after(self, seconds: float) -> "Clock":
        self.now += seconds
        return self


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_sign_of_life_that_changes_is_never_old(clock: Clock) -> None:
    detector = HangDetector()
    assert [detector.look(clock.after(0.1).now) for _ in range(100)] == [0.0] * 100


def test_one_that_hangs_grows_old_while_it_is_looked_at(clock: Clock) -> None:
    detector = HangDetector(7.0)
    for _ in range(100):
        clock.after(0.1)
        seconds = detector.look(7.0)
    assert seconds == pytest.approx(10.0)


def test_a_watcher_that_hung_itself_blames_no_process(clock: Clock) -> None:
    """It was stopped, its machine slept or had too much to do."""
    detector = HangDetector(7.0)
    clock.after(86_400.0)
    assert detector.look(7.0) <= MAX_LOOK_SECONDS
    assert detector.look(8.0) == 0.0
