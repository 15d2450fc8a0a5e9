"""Planned times, compared with what django-celery-beat's own DatabaseScheduler would fire, second by second."""

import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab as celery_crontab
from celery.schedules import schedule as celery_interval

from runs.celery_beat.schedules import (
    At,
    CelerySchedule,
    Disable,
    Every,
    Fire,
    RowSchedule,
    Task,
    Unservable,
    Wait,
    crontab,
    decide,
    every,
    first_time,
    solar,
    times_of,
    wake_at,
)

UTC = timezone.utc
BEGIN = datetime(2026, 3, 7, 20, 0, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))


def task(times: RowSchedule, **fields: Any) -> Task:
    given: dict[str, Any] = {
        "id": 1,
        "version": 1,
        "name": "settle",
        "enabled": True,
        "one_off": False,
        "run_count": 0,
        "last_run_at": None,
        "changed_at": BEGIN,
        "start_at": None,
        "expires_at": None,
    }
    return Task(**{**given, **fields}, read_times=lambda: times)


def ours(served: Task, until: datetime) -> list[datetime]:
    """As the loop would fire: at each time when there is something to decide, moved on as a claim does."""
    fired = []
    while (at := wake_at(served)) is not None and at <= until:
        decision = decide(served, at)
        if isinstance(decision, Disable):
            break
        if isinstance(decision, Wait):
            assert decision.until is not None and decision.until > at
            continue
        fired.append(decision.planned_at)
        served.last_run_at, served.run_count = decision.planned_at, served.run_count + 1
        if served.one_off:
            break
    return fired


def celerys(
    schedule: Any, last: datetime, zone: ZoneInfo, until: datetime, late: timedelta
) -> list[datetime]:
    """As beat does it: it asks again when it was told to, and notes the moment at which it sent."""
    app: Any = Celery("peer", set_as_current=False)
    app.conf.timezone = str(zone)
    schedule.app = app
    now, fired = last, list[datetime]()
    schedule.nowfun = lambda: now.astimezone(zone)
    while now <= until:
        due, seconds = schedule.is_due(last.astimezone(zone))
        if due:
            fired.append(now)
            last = now = now + late
        else:
            now += max(timedelta(seconds=seconds), timedelta(microseconds=1))
    return fired


CRONS = [
    ("0", "*", "*", "*", "*"),
    ("*/15", "*", "*", "*", "*"),
    ("*/7", "*/5", "*", "*", "*"),
    ("30", "2", "*", "*", "*"),
    ("15,45", "1-3", "*", "*", "*"),
    ("0", "0", "*/2", "*", "*"),
    ("0", "12", "13", "*", "fri"),
    ("5", "4", "*", "jan-jun", "sun,3"),
    ("59", "23", "29", "2", "*"),
    ("0", "22-2", "1-7", "*/3", "mon-fri"),
]
ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "America/Havana",
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("fields", CRONS, ids=" ".join)
@pytest.mark.parametrize(
    "last",
    [datetime(2026, 3, 6, 23, 7, tzinfo=UTC), datetime(2026, 10, 2, 5, 0, 0, 1, UTC)],
    ids=["03", "10"],
)
def test_a_crontab_fires_when_celery_beat_would_over_both_changes_of_the_clock(
    fields: tuple[str, str, str, str, str], zone: str, last: datetime
) -> None:
    minute, hour, day, month, week_day = fields
    until = last + timedelta(days=34)
    served = task(crontab(minute, hour, day, month, week_day, zone), last_run_at=last)
    cron: Any = celery_crontab(minute, hour, week_day, day, month)
    cron.tz = ZoneInfo(zone)
    expected = celerys(cron, last, ZoneInfo(zone), until, late=timedelta(milliseconds=3))
    found = ours(served, until)
    assert len(found) == len(expected)
    for mine, host in zip(found, expected, strict=True):
        assert timedelta(0) <= host - mine < timedelta(milliseconds=10), (mine, host)


@pytest.mark.parametrize("period", ["days", "hours", "minutes", "seconds", "microseconds"])
def test_an_interval_keeps_its_rhythm_where_celery_beat_drifts(period: str) -> None:
    length = timedelta(**{period: 700})
    until = BEGIN + 5 * length
    found = ours(task(every(700, period), last_run_at=BEGIN), until)
    assert found == [BEGIN + number * length for number in range(1, 6)]
    expected = celerys(celery_interval(length), BEGIN, ZoneInfo("Europe/Berlin"), until, late=timedelta(0))
    assert found == expected


def test_the_sun_rises_where_celery_sees_it() -> None:
    found = ours(task(solar("sunrise", 52.5, 13.4), last_run_at=BEGIN), BEGIN + 5 * DAY)
    assert len(found) == 5
    assert all(
        timedelta(hours=23) < b - a < timedelta(hours=25) for a, b in zip(found, found[1:], strict=False)
    )
    assert found[0].hour == 5  # in Berlin it is half past six


def test_without_ephem_a_solar_row_is_refused_with_what_helps() -> None:
    code = (
        "import sys; sys.modules['ephem'] = None\n"
        "from runs.celery_beat.schedules import solar, Unservable\n"
        "try: solar('sunrise', 1.0, 2.0)\n"
        "except Unservable as why: print(why)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install ephem" in done.stdout


def test_a_clocked_row_runs_once_and_again_only_after_another_change() -> None:
    at = BEGIN + HOUR
    assert wake_at(task(At(at), one_off=True)) == at
    assert decide(task(At(at), one_off=True), at) == Fire(at)
    switched_on_again = task(At(at), one_off=True, changed_at=at + DAY)
    assert decide(switched_on_again, at + DAY) == Fire(at + DAY)


def test_one_that_never_ran_counts_from_its_last_change() -> None:
    assert first_time(task(Every(HOUR))) == BEGIN + HOUR


@pytest.mark.parametrize(
    ("times", "first"),
    [
        (Every(HOUR), BEGIN + 90 * MINUTE),
        (crontab("0", "*", "*", "*", "*", "UTC"), BEGIN + 2 * HOUR),
        (crontab("30", "*", "*", "*", "*", "UTC"), BEGIN + 90 * MINUTE),
        (At(BEGIN + MINUTE), BEGIN + 90 * MINUTE),
        (At(BEGIN + 3 * HOUR), BEGIN + 3 * HOUR),
    ],
    ids=["interval", "crontab", "crontab then", "clocked before", "clocked after"],
)
def test_with_a_start_time_the_first_run_is_at_the_start_or_a_crontabs_first_time_from_then_on(
    times: RowSchedule, first: datetime
) -> None:
    waiting = task(times, start_at=BEGIN + 90 * MINUTE)
    assert first_time(waiting) == wake_at(waiting) == first
    assert decide(waiting, BEGIN + 80 * MINUTE) == Wait(first)
    assert decide(waiting, first) == Fire(first)


def test_a_start_time_that_is_past_lets_a_new_row_run_at_once() -> None:
    for times in (Every(HOUR), crontab("0", "3", "*", "*", "*", "UTC")):
        assert first_time(task(times, start_at=BEGIN - DAY)) == BEGIN


def test_one_that_has_run_and_has_a_later_start_time_goes_on_at_the_start() -> None:
    served = task(Every(MINUTE), last_run_at=BEGIN, start_at=BEGIN + HOUR)
    assert first_time(served) == BEGIN + HOUR


def test_an_expired_one_is_switched_off_and_not_sent_also_where_both_come_late() -> None:
    served = task(Every(HOUR), expires_at=BEGIN + 90 * MINUTE, last_run_at=BEGIN)
    assert decide(served, BEGIN + HOUR) == Fire(BEGIN + HOUR)
    assert decide(served, BEGIN + 2 * HOUR) == Disable()
    served.last_run_at = BEGIN + HOUR
    assert wake_at(served) == BEGIN + 90 * MINUTE


def test_one_that_was_to_run_once_and_has_is_switched_off() -> None:
    served = task(Every(HOUR), one_off=True, run_count=1, last_run_at=BEGIN)
    assert wake_at(served) is not None and decide(served, BEGIN + MINUTE) == Disable()


def test_one_that_is_switched_off_is_never_looked_at() -> None:
    assert wake_at(task(Every(HOUR), enabled=False)) is None
    assert decide(task(Every(HOUR), enabled=False), BEGIN + DAY) == Wait(None)


@pytest.mark.parametrize(
    ("times", "latest"),
    [
        (Every(7 * MINUTE), BEGIN + 59 * 7 * MINUTE),
        (crontab("*", "*", "*", "*", "*", "UTC"), BEGIN + 415 * MINUTE),
        (crontab("0", "0", "*", "*", "*", "UTC"), BEGIN + 4 * HOUR),
    ],
    ids=["interval", "each minute", "midnight"],
)
def test_missed_times_are_made_up_for_by_the_latest_alone(times: RowSchedule, latest: datetime) -> None:
    served = task(times, last_run_at=BEGIN)
    decision = decide(served, BEGIN + 415 * MINUTE + 20 * SECOND)
    assert isinstance(decision, Fire) and decision.planned_at == latest
    first = first_time(served)
    assert decision.missed_since == (first if first < latest else None)


class Counted(celery_crontab):
    """A schedule of Celery's that notes how often it is asked."""

    count = 0

    def remaining_estimate(self, last_run_at: datetime, *given: Any) -> timedelta:
        self.count += 1
        estimate: timedelta = super().remaining_estimate(last_run_at, *given)
        return estimate


def test_years_of_missed_minutes_cost_no_walk_through_them() -> None:
    counted: Any = Counted("*", "*", "*", "*", "*")
    counted.tz = ZoneInfo("America/New_York")
    latest = CelerySchedule(counted).latest(BEGIN, BEGIN + timedelta(days=3000, seconds=7))
    assert latest == BEGIN + timedelta(days=3000) and counted.count < 10


def test_a_crontab_that_is_later_than_the_starting_deadline_waits_for_its_next_time() -> None:
    served = task(crontab("0", "*", "*", "*", "*", "UTC"), last_run_at=BEGIN)
    assert decide(served, BEGIN + 90 * MINUTE, deadline=60) == Wait(BEGIN + 2 * HOUR)
    assert decide(served, BEGIN + HOUR + 50 * SECOND, deadline=60) == Fire(BEGIN + HOUR)
    assert isinstance(decide(task(Every(HOUR), last_run_at=BEGIN), BEGIN + 90 * MINUTE, deadline=60), Fire)


EMPTY = dict.fromkeys(
    "every period minute hour day_of_month month_of_year day_of_week timezone event latitude longitude"
    " clocked_time".split()
)
CRON = {
    "minute": "0",
    "hour": "*",
    "day_of_month": "*",
    "month_of_year": "*",
    "day_of_week": "*",
    "timezone": "UTC",
}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({}, "has no schedule"),
        ({"every": 0, "period": "days"}, "never ends"),
        ({"every": 3_000_000, "period": "days"}, "a hundred years"),
        ({"every": 2**31 - 1, "period": "days"}, "a hundred years"),
        ({"every": 1, "period": "fortnights"}, "fortnights"),
        ({**CRON, "minute": "61"}, "crontab cannot be read"),
        ({**CRON, "minute": "a, b"}, "crontab cannot be read"),
        ({**CRON, "day_of_month": "30", "month_of_year": "2"}, "crontab cannot be read"),
        ({**CRON, "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"event": "moonrise", "latitude": 1, "longitude": 2}, "solar schedule cannot be read"),
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused_in_words(row: dict[str, Any], why: str) -> None:
    with pytest.raises(Unservable, match=why):
        times_of({**EMPTY, **row})
