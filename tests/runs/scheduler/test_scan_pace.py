"""Attacks the pauses between scans from the beginning: what only these find may not wait long."""

import pytest

from runs.scheduler.dispatch_loop import gather_seconds
from runs.scheduler.scan_pace import MAX_PAUSE_SECONDS, PAUSE_PER_SCAN, RECENT_SCANS, ScanPace

AT = 1000.0


def pace(*seconds: float) -> ScanPace:
    found = ScanPace()
    for one in seconds:
        found.note(AT, one)
    return found


def test_the_first_is_due_at_once() -> None:
    assert ScanPace().is_due(AT)


def test_scans_take_a_twentieth_of_the_time() -> None:
    slow = pace(*[0.02] * RECENT_SCANS)
    assert not slow.is_due(AT) and not slow.is_due(AT + PAUSE_PER_SCAN * 0.02 - 0.01)
    assert slow.is_due(AT + PAUSE_PER_SCAN * 0.02 + 0.01)


@pytest.mark.parametrize("others", range(RECENT_SCANS))
def test_a_scan_that_waited_for_something_else_is_not_taken_for_a_slow_one(others: int) -> None:
    quick = [0.0001] * RECENT_SCANS
    quick[others] = 60.0
    assert pace(*quick).is_due(AT + 0.005)


def test_a_few_slow_ones_at_the_beginning_make_no_pause() -> None:
    assert pace(*[60.0] * (RECENT_SCANS - 1)).is_due(AT)


def test_what_was_slow_once_is_forgotten() -> None:
    assert pace(*[60.0] * RECENT_SCANS, 0.0).is_due(AT)


def test_no_pause_is_longer_than_a_second() -> None:
    slow = pace(*[0.5] * RECENT_SCANS)
    assert not slow.is_due(AT + MAX_PAUSE_SECONDS - 0.01)
    assert slow.is_due(AT + MAX_PAUSE_SECONDS)


def test_a_scan_of_seconds_takes_no_more_than_half_of_the_time() -> None:
    slow = pace(*[4.0] * RECENT_SCANS)
    assert not slow.is_due(AT + 3.9)
    assert slow.is_due(AT + 4.0)


def test_a_clock_that_was_set_back_is_followed_by_a_scan() -> None:
    assert pace(*[60.0] * RECENT_SCANS).is_due(AT - 0.001)


def test_what_is_added_belongs_to_the_last() -> None:
    found = pace(*[0.01] * RECENT_SCANS)
    for _ in range(RECENT_SCANS):
        found.note(AT, 0.01)
        found.add(0.01)
    assert found.seconds == pytest.approx(0.02)


def test_runs_gather_for_longer_while_scans_are_slow_and_never_for_long() -> None:
    assert [gather_seconds(scan) for scan in (0.0, 0.002, 0.01, 4.0)] == [0.02, 0.02, 0.1, 0.25]
