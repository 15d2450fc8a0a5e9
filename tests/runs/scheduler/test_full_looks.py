"""Attacks the pauses between looks from the beginning: what only these find may not wait long."""

import pytest

from runs.scheduler.full_looks import MAX_PAUSE_SECONDS, PAUSE_PER_LOOK, RECENT_LOOKS, FullLooks

AT = 1000.0


def looks(*seconds: float) -> FullLooks:
    found = FullLooks()
    for one in seconds:
        found.note(AT, one)
    return found


def test_the_first_is_due_at_once() -> None:
    assert FullLooks().are_due(AT)


def test_looks_take_a_twentieth_of_the_time() -> None:
    slow = looks(*[0.02] * RECENT_LOOKS)
    assert not slow.are_due(AT) and not slow.are_due(AT + PAUSE_PER_LOOK * 0.02 - 0.01)
    assert slow.are_due(AT + PAUSE_PER_LOOK * 0.02 + 0.01)


@pytest.mark.parametrize("others", range(RECENT_LOOKS))
def test_a_look_that_waited_for_something_else_is_not_taken_for_a_slow_one(others: int) -> None:
    quick = [0.0001] * RECENT_LOOKS
    quick[others] = 60.0
    assert looks(*quick).are_due(AT + 0.005)


def test_a_few_slow_ones_at_the_beginning_make_no_pause() -> None:
    assert looks(*[60.0] * (RECENT_LOOKS - 1)).are_due(AT)


def test_what_was_slow_once_is_forgotten() -> None:
    assert looks(*[60.0] * RECENT_LOOKS, 0.0).are_due(AT)


def test_no_pause_is_longer_than_a_second() -> None:
    slow = looks(*[60.0] * RECENT_LOOKS)
    assert not slow.are_due(AT + MAX_PAUSE_SECONDS - 0.01)
    assert slow.are_due(AT + MAX_PAUSE_SECONDS)


def test_a_clock_that_was_set_back_is_followed_by_a_look() -> None:
    assert looks(*[60.0] * RECENT_LOOKS).are_due(AT - 0.001)


def test_what_is_added_belongs_to_the_last() -> None:
    found = looks(*[0.01] * RECENT_LOOKS)
    for _ in range(RECENT_LOOKS):
        found.note(AT, 0.01)
        found.add(0.01)
    assert found.seconds == pytest.approx(0.02)
