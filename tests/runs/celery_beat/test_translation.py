"""What a row becomes as a job, and whether the two would run at the same times."""

from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from kombu.utils.json import dumps

from jobs.schedules import parse, upcoming
from runs.celery_beat.comparison import BACK, FORWARD, UNEXPLAINED, TimeDifference, compare
from runs.celery_beat.due_tasks import task_of
from runs.celery_beat.schedules import times_of
from runs.celery_beat.translation import ImportOptions, NotImportable, Translation, translate
from tests.runs.celery_beat.test_schedules import CRONS, ZONES, ours

UTC = timezone.utc
NOW = datetime(2026, 2, 1, 10, 0, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WANTED = ImportOptions(pool="default")
NOTHING = dict.fromkeys(
    "every period minute hour day_of_month month_of_year day_of_week timezone event latitude longitude clocked_time"
    " queue exchange routing_key priority expire_seconds start_time expires".split()
)


def row(**fields: Any) -> dict[str, Any]:
    return {
        **NOTHING,
        "id": 7,
        "version": 1,
        "name": "settle",
        "task": "payments.settle",
        "args": '[1, "two"]',
        "kwargs": '{"three": {"four": 5}}',
        "headers": "{}",
        "description": "as agreed",
        "enabled": True,
        "one_off": False,
        "total_run_count": 3,
        "last_run_at": NOW - timedelta(minutes=10),
        "date_changed": NOW - DAY,
        **fields,
    }


def hourly(**fields: Any) -> dict[str, Any]:
    return row(every=1, period="hours", **fields)


def cron(minute: str, hour: str, day: str, month: str, week_day: str, zone: str = "UTC") -> dict[str, Any]:
    return {
        "minute": minute,
        "hour": hour,
        "day_of_month": day,
        "month_of_year": month,
        "day_of_week": week_day,
        "timezone": zone,
    }


def translated(given: dict[str, Any]) -> Translation:
    return translate(given, task_of(given), NOW, WANTED)


def test_a_row_becomes_a_job_that_does_the_same() -> None:
    made = translated(hourly())
    assert made.notes == []
    assert made.spec == {
        "name": "settle",
        "description": "as agreed",
        "pool": "default",
        "target": {
            "kind": "celery",
            "task": "payments.settle",
            "args": [1, "two"],
            "kwargs": {"three": {"four": 5}},
        },
        "schedule": {"every": 3600, "begins_at": "2026-02-01T10:50:30.000Z"},
        "timeout": "P1D",
        "overlap": "allow_all",
        "catch_up": {"policy": "last"},
        "retry": {"max_attempts": 1},
        "priority": 500,
        "tags": {"imported-from": "celery-beat"},
    }


@pytest.mark.parametrize("nothing", ["", "null", "[]", "{}"])
def test_arguments_that_celery_takes_for_nothing_are_a_jobs_none(nothing: str) -> None:
    target = translated(hourly(args=nothing, kwargs=nothing)).spec["target"]
    assert (target["args"], target["kwargs"]) == ([], {})


@pytest.mark.exhaustive
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("fields", CRONS, ids=" ".join)
def test_a_crontab_says_the_same_as_a_job_or_is_not_imported(
    fields: tuple[str, str, str, str, str], zone: str
) -> None:
    given = row(**cron(*fields, zone=zone))
    if fields == ("0", "12", "13", "*", "fri"):
        with pytest.raises(NotImportable, match="both day 13 of the month and fri of the week"):
            translated(given)
        return
    schedule = parse(translated(given).spec["schedule"])
    # Far from any change of the clock; the others are the shadow's subject.
    begin = datetime(2026, 5, 1, tzinfo=UTC)
    task = task_of({**given, "last_run_at": begin})
    assert ours(task, begin + 40 * DAY) == [
        at for at in upcoming(schedule, begin, 5000, anchor=begin) if at <= begin + 40 * DAY
    ]


@pytest.mark.parametrize(
    ("fields", "expression"),
    [
        (("*/15", "*/2", "*", "*", "*"), "*/15 */2 * * *"),
        (("0", "22-2", "*", "*", "*"), "0 0,1,2,22,23 * * *"),
        (("0", "0", "*", "january-march", "monday"), "0 0 * 1,2,3 1"),
        (("1, 2", "*/30", "*/2", "*", "*"), "1,2 0 */2 * *"),
        (("0", "0", "1-7", "*", "mon"), "0 0 * * 1#1"),
        (("0", "0", "8-14,22-28", "*", "2"), "0 0 * * 2#2,2#4"),
        (("0", "0", "1,15", "*", "mon,wed"), "0 0 */31,15 * 1,3"),
        (("0", "0", "15", "*", "sat,sun"), "0 0 15 * */6"),
    ],
)
def test_days_that_must_match_both_ways_are_said_in_a_way_that_cron_takes_together(
    fields: tuple[str, str, str, str, str], expression: str
) -> None:
    assert translated(row(**cron(*fields))).spec["schedule"] == {"cron": expression, "timezone": "UTC"}


@pytest.mark.parametrize(
    ("fields", "schedule"),
    [
        ({"expires": NOW + DAY}, {"ends_at": "2026-02-02T10:00:29.999Z"}),
        ({"start_time": NOW + DAY, "last_run_at": None}, {"begins_at": "2026-02-02T10:00:30.000Z"}),
        ({"one_off": True, "total_run_count": 0}, {"at": "2026-02-01T10:50:30.000Z"}),
    ],
)
def test_start_end_and_once_are_the_schedules_own(fields: dict[str, Any], schedule: dict[str, Any]) -> None:
    assert schedule.items() <= translated(hourly(**fields)).spec["schedule"].items()


def test_a_clocked_row_is_a_job_that_runs_once() -> None:
    at = NOW + HOUR
    made = translated(row(clocked_time=at, one_off=True, total_run_count=0, last_run_at=None))
    assert made.spec["schedule"] == {"at": "2026-02-01T11:00:30.000Z"}


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"queue": "fast", "routing_key": "x"}, "queue and routing_key are not kept"),
        ({"headers": '{"colour": "red"}'}, "headers are not kept"),
        ({"expire_seconds": 60}, "expire_seconds 60 is not kept"),
        ({"priority": 7}, "priority 7 of its messages becomes 850"),
        ({"priority": 200}, "priority 200 of its messages becomes 1000"),
        ({"enabled": False}, "the job is paused"),
        ({"last_run_at": NOW - DAY}, "nobody sent it"),
    ],
)
def test_what_has_no_counterpart_is_reported(fields: dict[str, Any], note: str) -> None:
    assert note in " ".join(translated(hourly(**fields)).notes)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"every": 5, "period": "microseconds"}, "once a second at most"),
        ({"event": "sunrise", "latitude": 1, "longitude": 2}, "follows the sun"),
        ({"args": "[1,"}, "args are not JSON"),
        (
            {"kwargs": dumps({"since": [NOW], "by": UUID(int=7), "at": NOW.date()})},
            "kwargs hold a UUID, a date, a datetime, which",
        ),
        ({"args": '[{"__type__": "decimal", "__value__": "much"}]'}, "args are not JSON"),
        ({}, "has no schedule"),
        ({"every": 1, "period": "hours", "expires": NOW - DAY}, "before it would run again"),
        ({"clocked_time": NOW - HOUR, "one_off": True, "total_run_count": 0}, "which is past"),
        ({"every": 1, "period": "hours", "one_off": True, "total_run_count": 1}, "and has"),
    ],
)
def test_what_cannot_be_a_job_stays_a_row(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(NotImportable, match=why):
        translated(row(**fields))


def compared(given: dict[str, Any], length: timedelta = DAY) -> list[TimeDifference]:
    found = compare(task_of(given), translated(given).spec, NOW, length)
    assert found.compared > 0
    return found.differences


@pytest.mark.parametrize("period", ["seconds", "minutes", "hours", "days"])
@pytest.mark.parametrize("last", [NOW - timedelta(days=3, microseconds=123_457), NOW, None])
def test_an_interval_and_its_job_keep_the_same_rhythm(period: str, last: datetime | None) -> None:
    given = row(every=7, period=period, last_run_at=last)
    assert compared(given, length=timedelta(**{period: 70})) == []


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("fields", [fields for fields in CRONS if fields[4] != "fri"], ids=" ".join)
def test_a_crontab_and_its_job_differ_only_where_the_clock_changes(
    fields: tuple[str, str, str, str, str], zone: str
) -> None:
    differences = compare(
        task_of(row(**cron(*fields, zone=zone))), translated(row(**cron(*fields, zone=zone))).spec, NOW, DAY
    ).differences
    assert UNEXPLAINED not in {different.rule for different in differences}
    if zone in ("UTC", "Asia/Kathmandu"):
        assert differences == []


def test_a_start_time_that_is_a_time_of_the_crontab_is_the_first_of_both() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    given = row(**cron("0", "0", "1", "*", "*"), start_time=start, last_run_at=None, total_run_count=0)
    assert ours(task_of(given), start + DAY) == [start]
    assert compared(given, length=120 * DAY) == []


def test_the_differences_at_a_change_of_the_clock_are_these() -> None:
    half_past_two = compared(row(**cron("30", "2", "*", "*", "*", "Europe/Berlin")))
    assert half_past_two == [
        TimeDifference(datetime(2026, 3, 29, 1, 0, tzinfo=UTC), False, FORWARD),
        TimeDifference(datetime(2026, 3, 29, 1, 30, tzinfo=UTC), True, FORWARD),
    ]
    quarters = compared(row(**cron("*/15", "*", "*", "*", "*", "Europe/Berlin")))
    assert [(different.at.hour, different.by_celery) for different in quarters] == [(1, False)] * 4
    assert {different.rule for different in quarters} == {BACK}


def test_a_job_that_runs_at_other_times_is_found_out() -> None:
    given = row(**cron("30", "2", "*", "*", "*"))
    spec = {**translated(given).spec, "schedule": {"cron": "31 2 * * *", "timezone": "UTC"}}
    assert {different.rule for different in compare(task_of(given), spec, NOW, DAY).differences} == {
        UNEXPLAINED
    }


def test_times_are_read_of_whatever_the_row_has_first() -> None:
    both = row(every=2, period="hours", **cron("0", "0", "*", "*", "*"))
    assert times_of(both).after(NOW) == NOW + 2 * HOUR
