"""Golden examples: what each notation means, when it fires, how it is stored and put into words."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise

import pytest

from jobs.schedules import (
    Cron,
    OnDemand,
    Schedule,
    describe,
    due_times,
    last_before,
    next_after,
    parse,
    upcoming,
)
from jobs.schedules.cron import occurrences
from tests.jobs.schedules.zone_changes import ZONES

UTC = timezone.utc
NOON = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
NEW_YORK = "America/New_York"


def read(spec: object, hash_id: str = "job") -> Schedule:
    return parse(spec, hash_id=hash_id)


def cron(expression: str, zone: str = "UTC", hash_id: str = "job") -> Cron:
    schedule = read({"cron": expression, "timezone": zone}, hash_id)
    assert isinstance(schedule, Cron)
    return schedule


def local(expression: str, zone: str, after: str, count: int) -> list[str]:
    schedule = cron(expression, zone)
    start = datetime.fromisoformat(after)
    return [
        f"{planned.astimezone(schedule.zone):%m-%d %H:%M %z}"
        for planned in upcoming(schedule, start, count, anchor=start)
    ]


SPRING = "2026-03-07T23:00:00-05:00"
AUTUMN = "2026-10-31T23:00:00-04:00"
APRIL, OCTOBER = "2026-04-04T23:30:00+11:00", "2026-10-03T23:30:00+10:30"


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        ("30 2 * * *", NEW_YORK, SPRING, ["03-08 03:00 -0400", "03-09 02:30 -0400"]),
        ("15 2-3 * * *", NEW_YORK, SPRING, ["03-08 03:00 -0400", "03-08 03:15 -0400", "03-09 02:15 -0400"]),
        ("15,30 2 * * *", NEW_YORK, SPRING, ["03-08 03:00 -0400", "03-09 02:15 -0400"]),
        ("30 2,3 * * *", NEW_YORK, SPRING, ["03-08 03:00 -0400", "03-08 03:30 -0400"]),
        ("0 2,3 * * *", NEW_YORK, SPRING, ["03-08 03:00 -0400", "03-09 02:00 -0400"]),
        ("*/30 * * * *", NEW_YORK, "2026-03-08T01:00:00-05:00", ["03-08 01:30 -0500", "03-08 03:00 -0400"]),
        ("0 */2,5 * * *", NEW_YORK, SPRING, ["03-08 00:00 -0500", "03-08 03:00 -0400", "03-08 04:00 -0400"]),
        ("30 0-23/2 * * *", NEW_YORK, SPRING, ["03-08 00:30 -0500", "03-08 03:00 -0400", "03-08 04:30 -0400"]),
        ("0 */2 * * *", NEW_YORK, SPRING, ["03-08 00:00 -0500", "03-08 04:00 -0400"]),
        ("30 1 * * *", NEW_YORK, AUTUMN, ["11-01 01:30 -0400", "11-02 01:30 -0500"]),
        ("30 1 * * *", NEW_YORK, "2026-11-01T01:10:00-05:00", ["11-02 01:30 -0500"]),
        ("0 1-2 * * *", NEW_YORK, AUTUMN, ["11-01 01:00 -0400", "11-01 02:00 -0500"]),
        ("30 2 * * *", NEW_YORK, AUTUMN, ["11-01 02:30 -0500"]),
        ("30 * * * *", NEW_YORK, "2026-11-01T01:00:00-04:00", ["11-01 01:30 -0400", "11-01 01:30 -0500"]),
        ("30 0-23 * * *", NEW_YORK, "2026-11-01T01:00:00-04:00", ["11-01 01:30 -0400", "11-01 02:30 -0500"]),
        ("0 */2 * * *", "Europe/Berlin", "2026-10-25T01:00:00+02:00", ["10-25 02:00 +0200", "10-25 02:00 +0100"]),
        ("0 * * * *", "Australia/Lord_Howe", APRIL, ["04-05 00:00 +1100", "04-05 01:00 +1100", "04-05 02:00 +1030"]),
        ("45 1 * * *", "Australia/Lord_Howe", APRIL, ["04-05 01:45 +1100", "04-06 01:45 +1030"]),
        ("45 * * * *", "Australia/Lord_Howe", "2026-04-05T01:00:00+11:00", ["04-05 01:45 +1100", "04-05 01:45 +1030"]),
        ("10 2 * * *", "Australia/Lord_Howe", OCTOBER, ["10-04 02:30 +1100", "10-05 02:10 +1100"]),
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00-03:00", ["11-04 01:00 -0200", "11-05 00:00 -0200"]),
        ("30 2 * * *", "Pacific/Apia", "2011-12-29T12:00:00-10:00", ["12-31 00:00 +1400", "12-31 02:30 +1400"]),
        ("0 0 * * *", "Pacific/Apia", "2011-12-29T12:00:00-10:00", ["12-31 00:00 +1400", "01-01 00:00 +1400"]),
        ("0 */6 * * *", "Pacific/Apia", "2011-12-29T12:00:00-10:00", ["12-29 18:00 -1000", "12-31 00:00 +1400"]),
        ("0 9 * * FRI", "Pacific/Apia", "2011-12-29T12:00:00-10:00", ["12-31 00:00 +1400", "01-06 09:00 +1400"]),
    ],
)  # fmt: skip
def test_times_in_gaps_and_folds(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert local(expression, zone, after, len(expected)) == expected


def test_a_year_of_half_past_one_has_one_firing_a_day() -> None:
    times = upcoming(cron("30 1 * * *", NEW_YORK), datetime(2026, 1, 1, 5, tzinfo=UTC), 365, anchor=NOON)
    assert len({f"{planned - timedelta(hours=5):%F}" for planned in times}) == 365


def test_a_quarter_of_an_hour_stays_one_all_year() -> None:
    times = upcoming(cron("*/15 * * * *", NEW_YORK), datetime(2026, 1, 1, tzinfo=UTC), 365 * 96, anchor=NOON)
    assert {later - earlier for earlier, later in pairwise(times)} == {timedelta(minutes=15)}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/10 * * * * *", ["11-18 12:00:10", "11-18 12:00:20"]),
        ("30 */10 * * * *", ["11-18 12:00:30", "11-18 12:10:30"]),
        ("@hourly", ["11-18 13:00:00"]),
        ("@daily", ["11-19 00:00:00"]),
        ("@midnight", ["11-19 00:00:00"]),
        ("@weekly", ["11-22 00:00:00"]),
        ("@monthly", ["12-01 00:00:00", "01-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00"]),
        ("@Annually", ["01-01 00:00:00"]),
        ("0 0 * * mon", ["11-23 00:00:00"]),
        ("0 0 * * 0", ["11-22 00:00:00", "11-29 00:00:00"]),
        ("0 0 * * 7", ["11-22 00:00:00", "11-29 00:00:00"]),
        ("0 0 * * FRI-SUN", ["11-20 00:00:00", "11-21 00:00:00", "11-22 00:00:00", "11-27 00:00:00"]),
        ("0 0 * * 5-7", ["11-20 00:00:00", "11-21 00:00:00", "11-22 00:00:00", "11-27 00:00:00"]),
        ("0 0 * * SUN-TUE", ["11-22 00:00:00", "11-23 00:00:00", "11-24 00:00:00", "11-29 00:00:00"]),
        ("0 0 L * *", ["11-30 00:00:00", "12-31 00:00:00", "01-31 00:00:00", "02-28 00:00:00"]),
        ("0 0 15,L * *", ["11-30 00:00:00", "12-15 00:00:00"]),
        ("0 0 L 2 *", ["02-28 00:00:00", "02-29 00:00:00"]),
        ("0 0 * * 5L", ["11-27 00:00:00", "12-25 00:00:00"]),
        ("0 0 * * L5", ["11-27 00:00:00", "12-25 00:00:00"]),
        ("0 0 * * friL", ["11-27 00:00:00", "12-25 00:00:00"]),
        ("0 0 * * 7L", ["11-29 00:00:00"]),
        ("0 0 * * 5#2", ["12-11 00:00:00", "01-08 00:00:00"]),
        ("0 0 * * FRI#5", ["01-29 00:00:00", "04-30 00:00:00"]),
        ("0 0 * * 1,5#2", ["11-23 00:00:00", "11-30 00:00:00", "12-07 00:00:00", "12-11 00:00:00"]),
        (
            "0 0 13 * 5",
            ["11-20 00:00:00", "11-27 00:00:00", "12-04 00:00:00", "12-11 00:00:00", "12-13 00:00:00"],
        ),
        ("0 0 */2 * 5", ["11-27 00:00:00", "12-11 00:00:00"]),
        ("0 0 13 * */2", ["12-13 00:00:00", "02-13 00:00:00"]),
        ("0 0 29 2 *", ["02-29 00:00:00"]),
        ("5/20 12 * * *", ["11-18 12:05:00", "11-18 12:25:00", "11-18 12:45:00", "11-19 12:05:00"]),
        ("0 8-17/4 * * *", ["11-18 16:00:00", "11-19 08:00:00"]),
        ("0 0 1 jan,JUL *", ["01-01 00:00:00", "07-01 00:00:00"]),
    ],
)
def test_what_a_notation_means(expression: str, expected: list[str]) -> None:
    times = upcoming(cron(expression), NOON, len(expected), anchor=NOON)
    assert [f"{planned:%m-%d %H:%M:%S}" for planned in times] == expected


def test_the_rarest_date_is_found_from_both_sides() -> None:
    fifth_friday_of_february = cron("0 0 * 2 5#5")
    times = upcoming(fifth_friday_of_february, NOON, 3, anchor=NOON)
    assert all((t.month, t.day, t.isoweekday()) == (2, 29, 5) for t in times)
    assert (
        last_before(fifth_friday_of_february, times[1] - timedelta(seconds=1), anchor=NOON, not_before=NOON)
        == times[0]
    )


@pytest.mark.parametrize(
    "expression", ["H H * * *", "H/15 * * * *", "H(0-29) H(2-5) * * *", "H H H H H", "H H * * H"]
)
def test_hashed_times_stay_put_and_spread(expression: str) -> None:
    assert cron(expression, hash_id="a").pattern == cron(expression, hash_id="a").pattern
    assert len({cron(expression, hash_id=str(n)).pattern for n in range(40)}) >= 12


def test_hashed_times_are_the_same_in_every_process() -> None:
    pattern = cron("H H(2-5) H * H/2", hash_id="0190f2a4-7a10-7c3e-8a55-3a1f6f3f3a10").pattern
    assert pattern.minutes == (10,)
    assert pattern.hours == (4,)


def test_hashed_times_keep_to_their_range() -> None:
    for n in range(200):
        pattern = cron("H(10-19) H/6 H * *", hash_id=str(n)).pattern
        assert 10 <= pattern.minutes[0] <= 19
        assert len(pattern.hours) == 4
        assert {later - earlier for earlier, later in pairwise(pattern.hours)} == {6}
        assert max(pattern.days.month_days) <= 28
        assert not pattern.interval_like


def test_only_hashed_times_depend_on_the_job() -> None:
    assert cron("0 0 * * THU", hash_id="a").pattern is cron("0 0 * * THU", hash_id="b").pattern


# Intervals


@pytest.mark.parametrize(
    ("every", "seconds"),
    [
        (30, 30),
        (1, 1),
        (1.5, 1.5),
        (2.001, 2.001),
        ("PT30S", 30),
        ("PT1M", 60),
        ("PT1H30M", 5400),
        ("P1D", 86400),
    ]
    + [
        ("P1DT2H", 93600),
        ("P2W", 1209600),
        ("PT1.250S", 1.25),
        ("PT36H", 129600),
        (315_360_000, 315_360_000),
    ],
)
def test_an_interval_is_seconds_or_a_duration(every: object, seconds: float) -> None:
    assert read({"every": every}).as_json() == {"every": seconds}


def test_an_interval_counts_from_its_anchor() -> None:
    schedule = read({"every": 30})
    anchor = NOON + timedelta(seconds=7, microseconds=250_999)
    first = NOON + timedelta(seconds=37, milliseconds=250)
    assert next_after(schedule, NOON, anchor=anchor) == first
    assert next_after(schedule, anchor, anchor=anchor) == first
    assert next_after(schedule, first, anchor=anchor) == first + timedelta(seconds=30)
    assert next_after(schedule, first - timedelta(milliseconds=1), anchor=anchor) == first
    assert last_before(schedule, first - timedelta(milliseconds=1), anchor=anchor, not_before=anchor) is None
    assert last_before(schedule, first, anchor=anchor, not_before=anchor) == first


def test_an_interval_with_a_start_begins_there_whatever_the_anchor() -> None:
    schedule = read(
        {"every": "PT1H", "begins_at": "2026-11-18T13:15:00+01:00", "ends_at": "2026-11-18T14:15:00Z"}
    )
    start = NOON + timedelta(minutes=15)
    expected = [start, start + timedelta(hours=1), start + timedelta(hours=2)]
    assert upcoming(schedule, NOON, 9, anchor=NOON - timedelta(days=3)) == expected
    assert last_before(schedule, NOON + timedelta(days=9), anchor=NOON, not_before=NOON) == expected[-1]
    assert last_before(schedule, start - timedelta(seconds=1), anchor=NOON, not_before=NOON) is None


def test_an_interval_over_a_long_gap_is_arithmetic() -> None:
    schedule = read({"every": 1})
    later = NOON + timedelta(days=3650, milliseconds=400)
    assert next_after(schedule, later, anchor=NOON) == later + timedelta(milliseconds=600)
    assert last_before(schedule, later, anchor=NOON, not_before=NOON) == later - timedelta(milliseconds=400)
    assert last_before(schedule, later, anchor=NOON, not_before=later) is None


# Bounds, one time, on demand


def test_start_and_end_are_planned_times_themselves_if_they_match() -> None:
    schedule = read(
        {"cron": "0 * * * *", "begins_at": "2026-11-18T13:00:00Z", "ends_at": "2026-11-18T15:00:00Z"}
    )
    hours = [NOON + timedelta(hours=n) for n in (1, 2, 3)]
    assert upcoming(schedule, NOON - timedelta(days=1), 9, anchor=NOON) == hours
    assert next_after(schedule, hours[-1], anchor=NOON) is None
    assert last_before(schedule, NOON + timedelta(days=1), anchor=NOON, not_before=NOON) == hours[-1]
    assert last_before(schedule, hours[0], anchor=NOON, not_before=NOON) == hours[0]
    assert last_before(schedule, NOON + timedelta(minutes=30), anchor=NOON, not_before=NOON) is None


def test_a_start_between_two_milliseconds_of_a_second_waits_for_the_next_match() -> None:
    schedule = read({"cron": "* * * * * *", "begins_at": "2026-11-18T13:00:00.001Z"})
    assert next_after(schedule, NOON, anchor=NOON) == NOON + timedelta(hours=1, seconds=1)


def test_a_schedule_may_end_where_it_starts() -> None:
    schedule = read(
        {"cron": "0 * * * *", "begins_at": "2026-11-18T13:00:00Z", "ends_at": "2026-11-18T13:00:00Z"}
    )
    assert upcoming(schedule, NOON, 9, anchor=NOON) == [NOON + timedelta(hours=1)]


def test_one_time_is_planned_once() -> None:
    schedule = read({"at": "2026-11-18T13:00:00.500+01:00"})
    at = NOON + timedelta(milliseconds=500)
    assert upcoming(schedule, NOON, 5, anchor=NOON) == [at]
    assert next_after(schedule, at, anchor=NOON) is None
    assert last_before(schedule, at, anchor=NOON, not_before=NOON) == at
    assert last_before(schedule, NOON, anchor=NOON, not_before=NOON) is None
    assert last_before(schedule, at, anchor=NOON, not_before=at + timedelta(milliseconds=1)) is None


def test_on_demand_is_never_planned() -> None:
    schedule = read(None)
    assert isinstance(schedule, OnDemand)
    assert next_after(schedule, NOON, anchor=NOON) is None
    assert last_before(schedule, NOON, anchor=NOON, not_before=NOON) is None
    assert upcoming(schedule, NOON, 5, anchor=NOON) == []


def test_due_times_stop_at_the_limit_or_at_the_present() -> None:
    schedule = cron("*/5 * * * *")
    five = timedelta(minutes=5)
    assert due_times(schedule, NOON, NOON, anchor=NOON, limit=9) == [NOON]
    assert due_times(schedule, NOON, NOON + 2 * five, anchor=NOON, limit=9) == [
        NOON,
        NOON + five,
        NOON + 2 * five,
    ]
    assert due_times(schedule, NOON, NOON + 2 * five, anchor=NOON, limit=2) == [NOON, NOON + five]
    assert due_times(schedule, NOON, NOON - five, anchor=NOON, limit=9) == []


def test_jobs_of_the_same_schedule_share_one_reckoning() -> None:
    occurrences.next_after.cache_clear()
    for number in range(50):
        for zone in ZONES[:40]:
            next_after(cron("*/5 * * * *", zone, hash_id=str(number)), NOON, anchor=NOON)
    assert occurrences.next_after.cache_info().misses == 40


def test_a_naive_datetime_is_no_instant() -> None:
    with pytest.raises(ValueError, match="has no offset"):
        next_after(cron("* * * * *"), NOON.replace(tzinfo=None), anchor=NOON)


@pytest.mark.parametrize(
    "spec",
    [
        {"cron": "* * * * *", "timezone": "Pacific/Kiritimati"},
        {"every": 1},
        {"at": "9999-12-31T23:59:59.999Z"},
    ]
    + [
        {"cron": "* * * * *", "begins_at": "9999-12-31T23:59:59.999Z"},
        {"every": 5, "ends_at": "9999-12-31T23:59:59Z"},
    ],
)
def test_the_ends_of_time_break_nothing(spec: dict[str, object]) -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    for moment in (first, NOON, last - timedelta(days=700), last):
        next_after(read(spec), moment, anchor=NOON)
        last_before(read(spec), moment, anchor=NOON, not_before=first)


# Storage and words

SPECS = [
    (None, None, "On demand"),
    ({"cron": " */5  * * * *"}, {"cron": "*/5 * * * *", "timezone": "UTC"}, "Every 5 minutes, UTC"),
    (
        {"cron": "@daily", "timezone": NEW_YORK, "begins_at": None, "ends_at": "2027-01-01T00:00:00+01:00"},
        {"cron": "@daily", "timezone": NEW_YORK, "ends_at": "2026-12-31T23:00:00.000Z"},
        "At 00:00 every day, America/New_York, until 2026-12-31 23:00:00 UTC",
    ),
    (
        {"every": "PT1M30S", "begins_at": "2026-11-18t12:00:00.25z"},
        {"every": 90, "begins_at": "2026-11-18T12:00:00.250Z"},
        "Every 1 minute and 30 seconds, from 2026-11-18 12:00:00.250 UTC",
    ),
    ({"at": "2026-11-18 12:00Z"}, {"at": "2026-11-18T12:00:00.000Z"}, "Once, at 2026-11-18 12:00:00 UTC"),
    (
        {"at": "2026-11-18T12:00:00.123987+00:00"},
        {"at": "2026-11-18T12:00:00.123Z"},
        "Once, at 2026-11-18 12:00:00.123 UTC",
    ),
    (
        {"at": "2026-12-24 18:00", "timezone": "Europe/Berlin"},
        {"at": "2026-12-24T18:00:00", "timezone": "Europe/Berlin"},
        "Once, at 2026-12-24 18:00:00, Europe/Berlin",
    ),
    ({"every": 1.5}, {"every": 1.5}, "Every 1.5 seconds"),
    ({"every": "P1D"}, {"every": 86400}, "Every day"),
]


@pytest.mark.parametrize(("spec", "stored", "words"), SPECS)
def test_a_schedule_is_stored_normalised_and_read_back_the_same(
    spec: object, stored: object, words: str
) -> None:
    schedule = read(spec)
    assert schedule.as_json() == stored
    assert read(schedule.as_json()) == schedule
    assert describe(schedule) == words


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * *", "Every minute"),
        ("* * * * * *", "Every second"),
        ("*/10 * * * * *", "Every 10 seconds"),
        ("0 */10 * * * *", "Every 10 minutes"),
        ("*/7 * * * *", "At minutes 0 to 56 in steps of 7 of every hour"),
        ("0 * * * *", "Every hour"),
        ("@hourly", "Every hour"),
        ("15 */2 * * *", "Every 2 hours at minute 15"),
        ("0,30 * * * *", "Every 30 minutes"),
        ("5,35 * * * *", "At minutes 5 and 35 of every hour"),
        ("5,35 9-17 * * *", "At minutes 5 and 35 in hours 9 to 17"),
        ("30 2 * * *", "At 02:30 every day"),
        ("30 2 * * 1-5", "At 02:30 on weekdays"),
        ("0 9 * * 6,0", "At 09:00 on weekends"),
        ("0 9,17 * * 0,1", "At 09:00 and 17:00 on Monday and Sunday"),
        ("15 30 2 * * *", "At 02:30:15 every day"),
        ("*/5 9-17 * * MON-FRI", "Every 5 minutes in hours 9 to 17 on weekdays"),
        ("*/15 2 * * *", "At 02:00, 02:15, 02:30 and 02:45 every day"),
        ("*/20 0 9-17 * * *", "Every 20 seconds in minute 0 in hours 9 to 17"),
        ("0 0 L * *", "At 00:00 on the last day of the month"),
        ("0 0 1,L * *", "At 00:00 on day 1 and the last day of the month"),
        ("0 0 29 2 *", "At 00:00 on day 29 of February"),
        ("0 0 1 1,4,7,10 *", "At 00:00 on day 1 of January to October in steps of 3"),
        ("0 0 * 6-8 *", "At 00:00 in June to August"),
        ("0 0 * * 5L", "At 00:00 on the last Friday of the month"),
        ("0 0 * 3 5#2", "At 00:00 on the 2nd Friday of March"),
        ("0 0 13 * 5", "At 00:00 on day 13 of the month or on Friday"),
        ("0 0 13 5 5L", "At 00:00 on day 13 of the month or on the last Friday of the month in May"),
        ("0 0 */10 * 5", "At 00:00 on days 1 to 31 in steps of 10 of the month, if that is Friday"),
        ("0 0 1-31 * 5", "At 00:00 every day"),
        ("@weekly", "At 00:00 on Sunday"),
        ("@yearly", "At 00:00 on day 1 of January"),
    ],
)
def test_a_schedule_in_words(expression: str, words: str) -> None:
    assert describe(cron(expression)) == f"{words}, UTC"


def test_a_hashed_time_in_words_is_the_time_it_stands_for() -> None:
    schedule = cron("H 3 * * *")
    assert describe(schedule) == f"At 03:{schedule.pattern.minutes[0]:02} every day, UTC"


@pytest.mark.parametrize(
    ("shown", "planned"),
    [
        ("2026-12-24T18:00", "2026-12-24T17:00:00+00:00"),
        ("2026-07-01T18:00:30", "2026-07-01T16:00:30+00:00"),
        # Left out in spring: as cron, at the first instant after the gap. Shown twice in autumn: the first.
        ("2026-03-29T02:30", "2026-03-29T01:00:00+00:00"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00+00:00"),
    ],
)
def test_a_local_time_is_planned_as_the_clock_of_its_zone_shows_it(shown: str, planned: str) -> None:
    schedule, before = read({"at": shown, "timezone": "Europe/Berlin"}), datetime(2026, 1, 1, tzinfo=UTC)
    assert upcoming(schedule, before, 2, anchor=before) == [datetime.fromisoformat(planned)]
    assert read(schedule.as_json()) == schedule
