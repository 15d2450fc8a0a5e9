"""How far the clocks are apart, from one round trip."""

import time
from datetime import datetime, timedelta, timezone

import pytest

from scheduler_project.sdk.guard.heartbeat import HeartbeatThread
from scheduler_project.sdk.ledger import clock_skew
from scheduler_project.sdk.ledger.clock_skew import RoundTrip, describe


@pytest.mark.parametrize("hours", [3, 0, -3])
def test_skew_is_taken_from_the_midpoint(hours: int) -> None:
    round_trip = RoundTrip()
    theirs = datetime.now(timezone.utc) - timedelta(hours=hours)
    skew = round_trip.skew_ms(theirs)
    assert skew is not None and abs(skew - hours * 3_600_000) < 500


def test_a_clock_set_during_the_round_trip_does_not_count_half(monkeypatch: pytest.MonkeyPatch) -> None:
    round_trip = RoundTrip()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)
    skew = round_trip.skew_ms(datetime.now(timezone.utc))
    assert skew is not None and abs(skew) < 500


def test_a_late_answer_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_skew, "MAX_ROUND_TRIP", 0.0)
    assert RoundTrip().skew_ms(datetime.now(timezone.utc)) is None


def test_the_direction_is_said() -> None:
    assert describe(2500.0) == "2.5 s ahead of the database's"
    assert describe(-40.0) == "40 ms behind the database's"
    assert describe(0.0) == "0 ms behind the database's"
    assert describe(600_000.0) == "10 min ahead of the database's"
    assert describe(-3 * 3_600_000.0) == "3.0 h behind the database's"


def test_a_worker_says_once_that_its_clock_misleads(caplog: pytest.LogCaptureFixture) -> None:
    heartbeat = HeartbeatThread.__new__(HeartbeatThread)
    heartbeat._skew_ms = None
    for skew_ms in (None, 100.0, 5_000.0, 6_000.0, None, 50.0, -7_000.0):
        heartbeat._note_skew(skew_ms)
    assert [record.message for record in caplog.records] == [
        "This machine's clock is 5.0 s ahead of the database's",
        "This machine's clock is 7.0 s behind the database's",
    ]
    assert heartbeat._skew_ms == -7_000.0
