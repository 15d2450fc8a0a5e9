"""What a queue's limits leave: pure, so that every clock can be tried."""

from datetime import date, datetime, timedelta, timezone
from typing import Any

import pytest

from runs.reasons import Reason
from runs.scheduler.dispatch.fair_share import QueueLoad
from runs.scheduler.dispatch.queue_memory import QueueMemories
from runs.scheduler.dispatch.queues import QueueRow

NOON = datetime(2026, 11, 18, 12, tzinfo=timezone.utc)
TODAY = NOON.date()


def queue(**fields: Any) -> QueueRow:
    values = dict.fromkeys(QueueRow._fields)
    words = {
        "slug": "acme",
        "broker_queue": "",
        "reason": "",
        "weight": 1,
        "day_count": 0,
        "queued": 0,
        "allowed": True,
    }
    return QueueRow(**{**values, "tenant_id": 1, **words, **fields})


def test_a_queue_without_limits_has_room_for_any_number() -> None:
    assert queue().room(1000, NOON) is None
    assert not queue().limited
    assert queue(rate_limit=0.5).limited


@pytest.mark.parametrize(
    ("fields", "room", "why"),
    [
        ({"max_running": 5}, 2, ""),
        ({"max_running": 3}, 0, Reason.MAX_RUNNING),
        ({"max_running": 1}, 0, Reason.MAX_RUNNING),
        ({"daily_quota": 9, "day": TODAY, "day_count": 7}, 2, ""),
        ({"daily_quota": 9, "day": TODAY, "day_count": 9}, 0, Reason.DAILY_QUOTA),
        ({"daily_quota": 9, "day": TODAY, "day_count": 12}, 0, Reason.DAILY_QUOTA),
        ({"daily_quota": 0}, 0, Reason.DAILY_QUOTA),
        ({"rate_limit": 4.0}, 4, ""),
        ({"rate_limit": 4.0, "tokens": 0.5, "tokens_at": NOON}, 0, Reason.RATE_LIMIT),
        ({"max_running": 3, "daily_quota": 0, "rate_limit": 1.0}, 0, Reason.DAILY_QUOTA),
    ],
)
def test_the_tightest_limit_counts_and_the_longest_is_reported(
    fields: dict[str, Any], room: int, why: str
) -> None:
    assert queue(**fields).room(3, NOON) == room
    assert queue(**fields).limit_reached(3, NOON) == why


def test_the_count_of_a_day_ends_with_it_wherever_the_clock_is_read() -> None:
    spent = queue(daily_quota=5).spend(5, NOON)
    assert (spent.day, spent.day_count) == (TODAY, 5)
    midnight = NOON.replace(hour=0) + timedelta(days=1)
    assert spent.room(0, midnight - timedelta(microseconds=1)) == 0
    assert spent.room(0, midnight) == 5
    assert spent.room(0, midnight.astimezone(timezone(timedelta(hours=-8)))) == 5
    assert spent.spend(2, midnight).day_count == 2


def test_a_count_of_a_day_to_come_is_none_of_today() -> None:
    """The clock was set back."""
    assert queue(daily_quota=5, day=date(2026, 11, 19), day_count=5).room(0, NOON) == 5


def test_what_came_back_is_not_counted_and_never_less_than_nothing() -> None:
    spent = queue(daily_quota=5, day=TODAY, day_count=5)
    assert spent.uncount(2, NOON).room(0, NOON) == 2
    assert spent.uncount(9, NOON).room(0, NOON) == 5


def test_the_bucket_fills_by_the_rate_and_holds_a_second_of_it() -> None:
    spent = queue(rate_limit=10.0).spend(10, NOON)
    assert spent.room(0, NOON) == 0
    assert spent.room(0, NOON + timedelta(seconds=0.55)) == 5
    assert spent.room(0, NOON + timedelta(hours=1)) == 10


def test_a_slow_rate_lets_single_runs_go_in_time() -> None:
    spent = queue(rate_limit=0.1).spend(1, NOON)
    assert spent.room(0, NOON + timedelta(seconds=9.9)) == 0
    assert spent.room(0, NOON + timedelta(seconds=10)) == 1
    assert spent.room(0, NOON + timedelta(hours=1)) == 1


def test_no_bucket_waits_for_a_clock_that_was_set_back() -> None:
    assert queue(rate_limit=2.0, tokens=0.0, tokens_at=NOON + timedelta(hours=3)).room(0, NOON) == 2


def test_over_a_minute_of_any_looks_no_more_than_the_rate_and_one_burst_goes() -> None:
    one, gone, at = queue(rate_limit=7.0), 0, NOON
    for step in range(600):
        at = NOON + timedelta(seconds=0.1 * step + 0.013 * (step % 7))
        count = one.room(0, at) or 0
        gone, one = gone + count, one.spend(count, at)
    assert 7 * 59 <= gone <= 7 * 60 + 7


def test_a_clock_that_was_set_back_changes_nobodys_turn() -> None:
    """Who has nine tenths of the slots would have had least of all, for as long as the clock went back."""
    queues, at = QueueMemories(), NOON.timestamp()
    for look in (0.0, 0.1, -3600.0, -3600.0, -3599.9):
        loads = {1: QueueLoad(1, running=90), 2: QueueLoad(2, running=10)}
        if look == -3600.0:
            loads[1].running -= 1
        queues.look(loads, at + look)
    assert loads[1].served == pytest.approx(18.0) and loads[2].served == pytest.approx(2.0)
    assert all(seen.at <= at + look for memory in queues.values() for seen in memory.seen)
