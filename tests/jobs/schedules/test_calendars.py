"""Schedules that keep to a calendar: golden examples, and the rules said once more by looking at every time."""

from bisect import bisect_right
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from time import process_time
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.schedules import (
    Cron,
    OnCalendar,
    Schedule,
    WorkingTime,
    due_times,
    last_before,
    next_after,
    parse,
    read_calendar,
    upcoming,
)
from jobs.schedules.calendars.parsing import WEEK_DAYS
from jobs.schedules.calendars.shifting import REACH
from jobs.schedules.zones import first_instant, instants

UTC = timezone.utc
DAY, SECOND, MILLISECOND = timedelta(days=1), timedelta(seconds=1), timedelta(milliseconds=1)
NEW_YORK = "America/New_York"
WORKDAYS = ("mon", "tue", "wed", "thu", "fri")
WEEKDAYS: dict[str, Any] = {"timezone": NEW_YORK, "weekly": {day: [["00:00", "24:00"]] for day in WORKDAYS}}
OFFICE: dict[str, Any] = {
    "timezone": NEW_YORK,
    "dates": [{"date": "2026-11-26", "name": "Thanksgiving"}, "2026-12-25"],
    "weekly": {day: [["09:00", "12:30"], ["13:30", "17:00"]] for day in WORKDAYS},
}
FRIDAY = datetime(2026, 11, 20, 5, tzinfo=UTC)  # midnight in New York


def keep(spec: dict[str, Any], calendar: dict[str, Any], on_closed: str = "exclude") -> OnCalendar:
    named = {**spec, "calendar": {"name": "office", "on_closed": on_closed}}
    schedule = parse(named, "job", read_calendar(calendar))
    assert isinstance(schedule, OnCalendar)
    return schedule


def local(schedule: Schedule, after: datetime, count: int, zone: str = NEW_YORK) -> list[str]:
    times = upcoming(schedule, after, count, anchor=after)
    return [f"{planned.astimezone(ZoneInfo(zone)):%m-%d %H:%M}" for planned in times]


@pytest.mark.parametrize(
    ("cron", "on_closed", "expected"),
    [
        # Friday, the weekend left out, and Thanksgiving
        ("0 10 * * *", "exclude", ["11-20 10:00", "11-23 10:00", "11-24 10:00", "11-25 10:00", "11-27 10:00"]),
        # what falls together is one
        ("0 10 * * *", "next", ["11-20 10:00", "11-23 10:00", "11-24 10:00", "11-25 10:00", "11-27 10:00"]),
        ("0 10 * * SAT", "exclude", []),
        ("0 10 * * SAT", "next", ["11-23 10:00", "11-30 10:00"]),
        ("0 10 * * SAT", "previous", ["11-20 10:00", "11-27 10:00"]),
        ("0 10 * * THU", "next", ["11-27 10:00", "12-03 10:00"]),
        ("0 10 * * THU", "previous", ["11-25 10:00", "12-03 10:00"]),
        ("0 10 L * *", "next", ["11-30 10:00", "12-31 10:00", "02-01 10:00", "03-01 10:00"]),
        ("0 10 L * *", "previous", ["11-30 10:00", "12-31 10:00", "01-29 10:00", "02-26 10:00"]),
        ("0 10 25 12 *", "next", ["12-28 10:00"]),
        ("0 10 25 12 *", "previous", ["12-24 10:00"]),
        # hours: at noon it is open, at one it is closed on every day, so there is nowhere to go
        ("0 12,13,17 * * *", "exclude", ["11-20 12:00", "11-23 12:00"]),
        ("0 12,13,17 * * *", "next", ["11-20 12:00", "11-23 12:00"]),
        # over lunch and over night
        ("*/30 * * * *", "exclude", ["11-20 09:00", "11-20 09:30", "11-20 10:00"]),
        ("59 12-14 * * *", "exclude", ["11-20 13:59", "11-20 14:59", "11-23 13:59"]),
    ],
)  # fmt: skip
def test_closed_times_are_left_out_or_moved(cron: str, on_closed: str, expected: list[str]) -> None:
    schedule = keep({"cron": cron, "timezone": NEW_YORK}, OFFICE, on_closed)
    assert local(schedule, FRIDAY, max(1, len(expected))) == expected


def test_an_interval_goes_on_with_the_opening() -> None:
    schedule = keep({"every": "PT45M"}, OFFICE)
    times = local(schedule, FRIDAY, 12)
    assert times[:5] == ["11-20 09:00", "11-20 09:45", "11-20 10:30", "11-20 11:15", "11-20 12:00"]
    assert times[5:7] == ["11-20 13:30", "11-20 14:15"]
    assert times[-2:] == ["11-23 09:00", "11-23 09:45"]


@pytest.mark.parametrize(
    ("on_closed", "expected"), [("exclude", []), ("next", ["11-27 10:00"]), ("previous", ["11-25 10:00"])]
)
def test_one_time_goes_where_it_is_open(on_closed: str, expected: list[str]) -> None:
    schedule = keep({"at": "2026-11-26T10:00:00.250-05:00"}, OFFICE, on_closed)
    assert local(schedule, FRIDAY, 3) == expected
    moved = upcoming(schedule, FRIDAY, 1, anchor=FRIDAY)
    assert all(planned.microsecond == 250_000 for planned in moved)


def test_the_time_on_the_clock_is_kept_over_a_change_of_it() -> None:
    """Saturday's 10:00 is 14:00 UTC; Monday's, behind the change of 1 November, is 15:00 UTC."""
    schedule = keep({"cron": "0 10 * * SAT", "timezone": NEW_YORK}, WEEKDAYS, "next")
    autumn = datetime(2026, 10, 31, tzinfo=UTC)
    assert upcoming(schedule, autumn, 1, anchor=autumn) == [datetime(2026, 11, 2, 15, tzinfo=UTC)]


def test_a_time_moved_into_a_gap_comes_at_its_end() -> None:
    saturdays_closed = {"timezone": NEW_YORK, "dates": ["2026-03-07"]}
    schedule = keep({"cron": "30 2 7 3 *", "timezone": NEW_YORK}, saturdays_closed, "next")
    assert local(schedule, datetime(2026, 3, 1, tzinfo=UTC), 1) == ["03-08 03:00"]


def test_the_schedule_keeps_its_own_zone_and_the_calendar_its_own() -> None:
    """09:00 in Tokyo on a Saturday is Friday evening in New York, and open there; Monday's is Sunday evening."""
    schedule = keep({"cron": "0 9 * * SAT,MON", "timezone": "Asia/Tokyo"}, WEEKDAYS, "next")
    assert local(schedule, FRIDAY, 3, "Asia/Tokyo") == ["11-21 09:00", "11-24 09:00", "11-28 09:00"]


def test_the_second_pass_of_an_hour_is_open_again() -> None:
    """Open until 01:30: closed at 01:30 for the first time, open at 01:00 for the second."""
    nights = {"timezone": NEW_YORK, "weekly": {"sun": [["00:30", "01:30"]]}}
    schedule = keep({"cron": "*/15 * * * *", "timezone": NEW_YORK}, nights)
    first = datetime(2026, 11, 1, 5, 29, tzinfo=UTC)
    assert local(schedule, first, 3) == ["11-01 01:00", "11-01 01:15", "11-08 00:30"]
    before = datetime(2026, 11, 1, 4, tzinfo=UTC)
    assert local(schedule, before, 7) == [
        *["11-01 00:30", "11-01 00:45", "11-01 01:00", "11-01 01:15", "11-01 01:00", "11-01 01:15"],
        "11-08 00:30",
    ]


def test_start_and_end_bound_where_times_come_from_and_where_they_go() -> None:
    saturdays = {"cron": "0 10 * * SAT", "timezone": NEW_YORK}
    from_sunday = keep({**saturdays, "begins_at": "2026-11-22T00:00:00-05:00"}, OFFICE, "next")
    assert local(from_sunday, FRIDAY, 1) == ["11-30 10:00"]
    until_sunday = keep({**saturdays, "ends_at": "2026-11-29T00:00:00-05:00"}, OFFICE, "next")
    assert local(until_sunday, FRIDAY, 5) == ["11-23 10:00"]
    from_saturday = keep({**saturdays, "begins_at": "2026-11-21T00:00:00-05:00"}, OFFICE, "previous")
    assert local(from_saturday, FRIDAY, 1) == ["11-27 10:00"]


@pytest.mark.parametrize("on_closed", ["exclude", "next", "previous"])
@pytest.mark.parametrize("cron", ["0 20 * * *", "* * 3 * * *", "0 20 29 2 *", "0 0 1 1 *"])
def test_what_is_never_open_has_no_time_and_says_so_soon(cron: str, on_closed: str) -> None:
    schedule = keep({"cron": cron, "timezone": NEW_YORK}, OFFICE, on_closed)
    assert next_after(schedule, FRIDAY, anchor=FRIDAY) is None
    assert last_before(schedule, FRIDAY, anchor=FRIDAY, not_before=datetime(1970, 1, 1, tzinfo=UTC)) is None


HOSTILE_DAYS = {day: [[f"{hour:02}:00", f"{hour:02}:01"] for hour in range(24)] for day in WEEK_DAYS}
HOSTILE_DATES = [(date(2026, 11, 19) + n * DAY).isoformat() for n in range(2000)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("on_closed", ["exclude", "next", "previous"])
@pytest.mark.parametrize(
    "cron, dates",
    [("30 12 29 2 *", HOSTILE_DATES), ("2-59 * * * *", []), ("*/7 2-59 * * * *", HOSTILE_DATES[:50])],
)
def test_no_calendar_keeps_a_scheduler_busy(cron: str, dates: list[str], on_closed: str) -> None:
    calendar = {"timezone": NEW_YORK, "dates": dates, "weekly": HOSTILE_DAYS}
    schedule = keep({"cron": cron, "timezone": "Australia/Lord_Howe"}, calendar, on_closed)
    began = process_time()
    next_after(schedule, FRIDAY, anchor=FRIDAY)
    last_before(schedule, FRIDAY, anchor=FRIDAY, not_before=datetime(1970, 1, 1, tzinfo=UTC))
    assert process_time() - began < 5


def test_years_of_closed_days_are_jumped_over() -> None:
    first = date(2026, 1, 1)
    closed = {"timezone": NEW_YORK, "dates": [(first + n * DAY).isoformat() for n in range(2000)]}
    later = f"{first + 2000 * DAY:%m-%d} 00:00"
    for spec in ({"cron": "* * * * * *", "timezone": NEW_YORK}, {"cron": "0 0 * * *", "timezone": NEW_YORK}):
        for on_closed in ("exclude", "next"):
            assert local(keep(spec, closed, on_closed), FRIDAY, 1) == [later]
    saturdays = {**closed, "weekly": {day: [["00:00", "24:00"]] for day in WORKDAYS}}
    moved = keep({"cron": "0 0 * * SAT", "timezone": NEW_YORK}, saturdays, "next")
    assert local(moved, FRIDAY, 2) == [later, "06-30 00:00"]
    last = keep({"cron": "0 0 * * *", "timezone": NEW_YORK}, closed, "previous")
    assert last_before(last, FRIDAY, anchor=FRIDAY, not_before=FRIDAY - 1000 * DAY) == datetime(
        2025, 12, 31, 5, tzinfo=UTC
    )


def test_a_closed_date_may_cost_a_week() -> None:
    saturdays = {
        "timezone": NEW_YORK,
        "dates": ["2026-11-28", "2026-12-05"],
        "weekly": {"sat": [["09:00", "10:00"]]},
    }
    schedule = keep({"cron": "*/30 * * * *", "timezone": NEW_YORK}, saturdays)
    assert local(schedule, FRIDAY, 3) == ["11-21 09:00", "11-21 09:30", "12-12 09:00"]
    later = datetime(2026, 12, 12, 13, tzinfo=UTC)
    last = last_before(schedule, later, anchor=FRIDAY, not_before=FRIDAY)
    assert last == datetime(2026, 11, 21, 14, 30, tzinfo=UTC)
    assert local(keep({"cron": "30 9 * * SUN", "timezone": NEW_YORK}, saturdays, "next"), FRIDAY, 2) == [
        "11-21 09:30",
        "12-12 09:30",
    ]


def test_every_second_is_reckoned_without_counting_seconds() -> None:
    schedule = keep({"cron": "* * 9-20 * * *", "timezone": NEW_YORK}, OFFICE, "next")
    closing = datetime(2026, 11, 20, 21, 59, 59, tzinfo=UTC)
    assert next_after(schedule, closing, anchor=FRIDAY) == datetime(2026, 11, 23, 14, tzinfo=UTC)
    opening = datetime(2026, 11, 23, 14, tzinfo=UTC) - MILLISECOND
    assert last_before(schedule, opening, anchor=FRIDAY, not_before=FRIDAY) == closing


@pytest.mark.parametrize("on_closed", ["exclude", "next", "previous"])
def test_the_ends_of_time_break_nothing(on_closed: str) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for zone in (NEW_YORK, "Pacific/Kiritimati"):
        schedule = keep({"cron": "0 10 * * *", "timezone": zone}, OFFICE, on_closed)
        once = keep({"at": "9999-12-31T23:59:59.999Z"}, OFFICE, on_closed)
        for moment in (first, FRIDAY, datetime(1970, 1, 1, tzinfo=UTC), last - timedelta(days=700), last):
            for one in (schedule, once):
                next_after(one, moment, anchor=FRIDAY)
                last_before(one, moment, anchor=FRIDAY, not_before=first)


# The rules by looking at every time

ZONES = [
    NEW_YORK,
    "UTC",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Pacific/Apia",
    "Asia/Kolkata",
]
CRONS = [
    *[
        "0 10 * * *",
        "30 2 * * *",
        "0 */6 * * *",
        "30 * * * *",
        "15,45 1,23 * * *",
        "0 0 * * SAT,SUN",
        "0 12 L * *",
    ],
    *[
        "0 9 * * MON",
        "0 3 1,15 * *",
        "20 0-3 * * SUN",
        "0 13 13 * 5",
        "0 0 * * *",
        "30 23 * * FRI-SUN",
        "0 22 31 12 *",
    ],
]
# Around changes of the clocks of these zones.
MOMENTS = [
    datetime(year, month, day, tzinfo=UTC)
    for year, month, day in [
        *[
            (2026, 3, 8),
            (2026, 11, 1),
            (2026, 3, 29),
            (2026, 10, 25),
            (2026, 4, 4),
            (2026, 10, 3),
            (2018, 11, 4),
        ],
        *[(2018, 2, 18), (2011, 12, 30), (2026, 7, 1)],
    ]
]


def minutes(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low // 15, high // 15).map(lambda n: n * 15)


@st.composite
def hours(draw: st.DrawFn) -> list[list[str]]:
    marks = sorted(draw(st.sets(minutes(0, 1440), min_size=2, max_size=4)))
    spans = list(pairwise(marks))[::2]
    return [[f"{begin // 60:02}:{begin % 60:02}", f"{end // 60:02}:{end % 60:02}"] for begin, end in spans]


@st.composite
def calendars(draw: st.DrawFn, near: date) -> dict[str, Any]:
    closed = draw(st.sets(st.integers(-9, 12), max_size=9))
    weekly: dict[str, Any] = {}
    how = draw(st.sampled_from(["always", "days", "hours"]))
    if how != "always":
        days = draw(st.sets(st.sampled_from([*WORKDAYS, "sat", "sun"]), min_size=1))
        weekly = {day: [["00:00", "24:00"]] if how == "days" else draw(hours()) for day in days}
    dates = [(near + n * DAY).isoformat() for n in closed]
    return {"timezone": draw(st.sampled_from(ZONES)), "dates": dates, "weekly": weekly}


@st.composite
def cases(draw: st.DrawFn) -> tuple[OnCalendar, Cron, WorkingTime, datetime]:
    moment = draw(st.sampled_from(MOMENTS)) + timedelta(minutes=draw(st.integers(-3000, 3000)))
    calendar = draw(calendars(moment.date()))
    zone = draw(st.sampled_from([calendar["timezone"], draw(st.sampled_from(ZONES))]))
    plain: dict[str, Any] = {"cron": draw(st.sampled_from(CRONS)), "timezone": zone}
    on_closed = draw(st.sampled_from(["exclude", "next", "previous"]))
    if draw(st.integers(0, 3)) == 0:
        plain["begins_at"] = (moment - draw(st.integers(0, 4)) * DAY).strftime("%Y-%m-%dT%H:%M:%S.500Z")
        plain["ends_at"] = (moment + draw(st.integers(1, 9)) * DAY).strftime("%Y-%m-%dT%H:%M:%SZ")
    read = parse(plain, "job")
    assert isinstance(read, Cron)
    return keep(plain, calendar, on_closed), read, read_calendar(calendar), moment


def is_open(working: WorkingTime, instant: datetime) -> bool:
    wall = instant.astimezone(working.zone)
    second = wall.hour * 3600 + wall.minute * 60 + wall.second
    closed = wall.date() in working.closed
    return not closed and any(begin <= second < end for begin, end in working.weekly[wall.weekday()])


def image(schedule: OnCalendar, working: WorkingTime, planned: datetime, wall: datetime) -> datetime | None:
    """Where a time goes, day by day."""
    if is_open(working, planned):
        return planned
    if schedule.on_closed == "exclude":
        return None
    step = DAY if schedule.on_closed == "next" else -DAY
    passed = 0
    while passed <= REACH:
        if is_open(working, instant := first_instant(zone_of(schedule), wall)):
            return instant
        passed += wall.date() not in working.closed
        wall += step
    return None


def zone_of(schedule: OnCalendar) -> ZoneInfo:
    assert isinstance(schedule.base, Cron)
    return schedule.base.zone


def looked_at(
    schedule: OnCalendar, plain: Cron, working: WorkingTime, first: datetime, last: datetime
) -> list[datetime]:
    """Read a pattern's times on the clock as its times in UTC; what is in a gap moves as it is written."""
    reach = (REACH + 12) * DAY
    start, end = plain.begins_at or first - reach, plain.ends_at or last + reach
    on_the_clock = parse({"cron": plain.expression}, "job")
    wall = next_after(on_the_clock, first - reach, anchor=first)
    found: set[datetime | None] = set()
    while wall is not None and wall <= last + reach:
        shown = wall.replace(tzinfo=None)
        planned = (
            instants(plain.zone, shown)
            if plain.pattern.interval_like
            else (first_instant(plain.zone, shown),)
        )
        found.update(image(schedule, working, at, shown) for at in planned if start <= at <= end)
        wall = next_after(on_the_clock, wall, anchor=first)
    return sorted(at for at in found if at is not None and max(first, start) <= at <= min(last, end))


def shows_twice_differently(schedule: OnCalendar, working: WorkingTime) -> bool:
    """Move what repeats in a fold with its first pass, which a calendar of another zone may see otherwise."""
    assert isinstance(schedule.base, Cron)
    return schedule.base.zone is not working.zone and schedule.base.pattern.interval_like


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=120, database=None)
@given(cases())
def test_times_are_those_found_by_looking_at_every_one(
    case: tuple[OnCalendar, Cron, WorkingTime, datetime],
) -> None:
    schedule, plain, working, moment = case
    if schedule.on_closed != "exclude" and shows_twice_differently(schedule, working):
        return
    first, last = moment - 8 * DAY, moment + 12 * DAY
    expected = looked_at(schedule, plain, working, first, last)
    found: list[datetime] = []
    planned = next_after(schedule, first - MILLISECOND, anchor=moment)
    while planned is not None and planned <= last:
        assert not found or planned > found[-1]
        found.append(planned)
        planned = next_after(schedule, planned, anchor=moment)
    assert found == expected
    assert all(is_open(working, instant) for instant in found)
    if found:
        assert due_times(schedule, found[0], last, anchor=moment, limit=10_000) == found
    for asked in [
        moment,
        *(instant + step for instant in found[:9] for step in (-MILLISECOND, SECOND * 0, SECOND)),
    ]:
        latest = bisect_right(expected, asked) - 1
        before = last_before(schedule, asked, anchor=moment, not_before=first)
        assert before == (expected[latest] if latest >= 0 else None)


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=200, database=None)
@given(st.data())
def test_an_interval_leaves_out_exactly_what_is_closed(data: st.DataObject) -> None:
    moment = data.draw(st.sampled_from(MOMENTS))
    calendar = data.draw(calendars(moment.date()))
    plain = {"every": data.draw(st.sampled_from([900, 3600, 5000.5, 86_400]))}
    schedule, working = keep(plain, calendar), read_calendar(calendar)
    last = moment + 9 * DAY
    every = due_times(
        parse(plain), moment, last, anchor=moment - timedelta(seconds=plain["every"]), limit=2000
    )
    anchor = moment - timedelta(seconds=plain["every"])
    expected = [instant for instant in every if is_open(working, instant)]
    first = next_after(schedule, moment - MILLISECOND, anchor=anchor)
    found = due_times(schedule, first, last, anchor=anchor, limit=2000) if first else []
    assert found == expected
    assert last_before(schedule, last, anchor=anchor, not_before=moment) == (
        expected[-1] if expected else None
    )


@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(st.data())
def test_openings_and_closings_are_where_the_minutes_say(data: st.DataObject) -> None:
    moment = data.draw(st.sampled_from(MOMENTS))
    working = read_calendar(data.draw(calendars(moment.date())))
    start = moment - 2 * DAY + timedelta(minutes=data.draw(st.integers(0, 3000)))
    step = timedelta(minutes=15) if working.zone.key != "Africa/Monrovia" else timedelta(minutes=1)
    start -= timedelta(minutes=start.minute % 15)
    states = [(start + n * step, is_open(working, start + n * step)) for n in range(4 * 24 * 4)]
    opened = [later for (_, was), (later, now) in pairwise(states) if now and not was]
    closed = [later for (_, was), (later, now) in pairwise(states) if was and not now]
    if not states[0][1] and opened:
        assert working.next_opening(start) == opened[0]
    if not states[-1][1] and closed:
        assert working.last_closing(states[-1][0]) == closed[-1]
