"""What is refused, in which field, at which character, and what is said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.schedules import BadSchedule, parse

CRON = {
    # minute, hour and the marks every field shares
    "61 * * * *": "minute field (1st): 61 is above 59, at character 1",
    "  61 * * * *": "minute field (1st): 61 is above 59, at character 3",
    "0,61 * * * *": "minute field (1st): 61 is above 59, at character 3",
    "0-61 * * * *": "minute field (1st): 61 is above 59, at character 3",
    "99999999999999999999 * * * *": "minute field (1st): 99999999999999999999 is above 59, at character 1",
    "-1 * * * *": "minute field (1st): a number is missing, at character 1",
    "5- * * * *": "minute field (1st): a number is missing, at character 3",
    "x * * * *": "minute field (1st): X is not known, at character 1",
    "1.5 * * * *": "minute field (1st): 1.5 is not known, at character 1",
    "٣ * * * *": "minute field (1st): ٣ is not known, at character 1",
    "**  * * * *": "minute field (1st): ** is not known, at character 1",
    "*-5 * * * *": "minute field (1st): * is not known, at character 1",
    "5,,6 * * * *": "minute field (1st): nothing between the commas, at character 3",
    "5, * * * *": "minute field (1st): nothing between the commas, at character 3",
    "30-10 * * * *": "minute field (1st): 30-10 goes backwards, at character 1",
    "*/0 * * * *": "minute field (1st): a step of 0 never moves, at character 3",
    "*/60 * * * *": "minute field (1st): a step of 60 is above 59, at character 3",
    "*/ * * * *": "minute field (1st): nothing is not a step, at character 3",
    "*/5/2 * * * *": "minute field (1st): 5/2 is not a step, at character 3",
    "*/-5 * * * *": "minute field (1st): -5 is not a step, at character 3",
    "0-30/x * * * *": "minute field (1st): X is not a step, at character 6",
    "MON * * * *": "minute field (1st): MON is not known, at character 1",
    "L * * * *": "minute field (1st): L is not known, at character 1",
    "R * * * *": "minute field (1st): R is not known, at character 1",
    "R/5 * * * *": "minute field (1st): R is not known, at character 1",
    "? * * * *": "minute field (1st): ? is not known, at character 1",
    "0 24 * * *": "hour field (2nd): 24 is above 23, at character 3",
    "0 */24 * * *": "hour field (2nd): a step of 24 is above 23, at character 5",
    "0   22-2 * * *": "hour field (2nd): 22-2 goes backwards, at character 5",
    "0 0\n* * *": "5 or 6 fields are expected, 4 found, at character 10",
    # days and months
    "0 0 0 * *": "day-of-month field (3rd): 0 is below 1, at character 5",
    "0 0 32 * *": "day-of-month field (3rd): 32 is above 31, at character 5",
    "0 0 LW * *": "day-of-month field (3rd): LW is not known, at character 5",
    "0 0 15W * *": "day-of-month field (3rd): 15W is not known, at character 5",
    "0 0 L-3 * *": "day-of-month field (3rd): L is not known, at character 5",
    "0 0 ? * MON": "day-of-month field (3rd): ? is not known, at character 5",
    "0 0 * 13 *": "month field (4th): 13 is above 12, at character 7",
    "0 0 * 0 *": "month field (4th): 0 is below 1, at character 7",
    "0 0 * JAN,FOO *": "month field (4th): FOO is not known, at character 11",
    "0 0 * * 8": "day-of-week field (5th): 8 is above 7, at character 9",
    "0 0 * * MOM": "day-of-week field (5th): MOM is not known, at character 9",
    "0 0 * * FRI-MON": "day-of-week field (5th): FRI-MON goes backwards, at character 9",
    "0 0 * * L": "day-of-week field (5th): L is not known, at character 9",
    "0 0 * * 8L": "day-of-week field (5th): 8 is above 7, at character 9",
    "0 0 * * L8": "day-of-week field (5th): 8 is above 7, at character 10",
    "0 0 * * 5#6": "day-of-week field (5th): 6 after # is not 1 to 5, at character 11",
    "0 0 * * 5#": "day-of-week field (5th): nothing after # is not 1 to 5, at character 11",
    "0 0 * * 9#2": "day-of-week field (5th): 9 is above 7, at character 9",
    "0 0 * * 1,5#9": "day-of-week field (5th): 9 after # is not 1 to 5, at character 13",
    # six fields
    "60 * * * * *": "second field (1st): 60 is above 59, at character 1",
    "0 0 0 * * 8": "day-of-week field (6th): 8 is above 7, at character 11",
    "0 60 * * * *": "minute field (2nd): 60 is above 59, at character 3",
    # hashed
    "HH * * * *": "minute field (1st): HH is not known, at character 1",
    "H(0-60) * * * *": "minute field (1st): 60 is above 59, at character 5",
    "H(30-10) * * * *": "minute field (1st): 30-10 goes backwards, at character 3",
    "H(5) * * * *": "minute field (1st): H(5) is not known, at character 1",
    "H/60 * * * *": "minute field (1st): a step of 60 is above 59, at character 3",
    "0 0 H(1-31)W * *": "day-of-month field (3rd): H(1-31)W is not known, at character 5",
    # the whole
    "": "5 or 6 fields are expected, 0 found, at character 1",
    "* * * *": "5 or 6 fields are expected, 4 found, at character 8",
    "* * * * * * 2030": "5 or 6 fields are expected, 7 found, at character 13",
    "@reboot": "@reboot: there is no start-up to run at, at character 1",
    " @fortnightly": "@fortnightly: it is not known, at character 2",
    "0," * 600 + "0 * * * *": "1209 characters are more than 1000",
    "0 0 31 2 *": "no date ever matches 0 0 31 2 *",
    "0 0 30,31 FEB *": "no date ever matches 0 0 30,31 FEB *",
    "0 0 31 4,6,9,11 *": "no date ever matches 0 0 31 4,6,9,11 *",
    "0 0 */30 2 5#5": "no date ever matches 0 0 */30 2 5#5",
}

OTHERS: list[tuple[object, str, str]] = [
    ("*/5 * * * *", "schedule", "a string is not a schedule"),
    ([], "schedule", "a list is not a schedule"),
    (5, "schedule", "a number is not a schedule"),
    (True, "schedule", "a boolean is not a schedule"),
    ({}, "schedule", "none of cron, every and at is given"),
    ({"cron": None}, "schedule", "none of cron, every and at is given"),
    ({"timezone": "UTC"}, "schedule", "none of cron, every and at is given"),
    ({"cron": "* * * * *", "every": 30}, "schedule", "cron and every exclude each other"),
    ({"every": 5, "at": "2026-11-18T12:00:00Z"}, "schedule", "every and at exclude each other"),
    ({"cron": 5}, "schedule.cron", "a number is not a cron expression"),
    ({"cron": ["*"]}, "schedule.cron", "a list is not a cron expression"),
    ({"corn": "* * * * *"}, "schedule.corn", "corn is not known"),
    ({"every": 30, "jitters": 5}, "schedule.jitters", "jitters is not known"),
    ({"every": 30, "jitter": -1}, "schedule.jitter", "-1 is not from 0 to a day"),
    ({"every": 30, "jitter": 86_400.5}, "schedule.jitter", "86400.5 is not from 0 to a day"),
    ({"every": 30, "jitter": "P2D"}, "schedule.jitter", "P2D is not from 0 to a day"),
    ({"every": 30, "jitter": "P1M"}, "schedule.jitter", "P1M has years or months"),
    ({"every": 30, "jitter": True}, "schedule.jitter", "a boolean is not a length of time"),
    ({"every": 30, "jitter": 10**5000}, "schedule.jitter", "1000000000000 is not from 0 to a day"),
    ({"every": 30, "jitter": float("nan")}, "schedule.jitter", "nan is not a length of time"),
    ({"cron": "0 9 * * *", "jitter": 0.0001}, "schedule.jitter", "0.0001 has a fraction of a millisecond"),
    ({"every": 30, "calendar": "us"}, "schedule.calendar", "a string does not name a calendar"),
    ({"every": 30, "calendar": {}}, "schedule.calendar.name", "null is not a name"),
    ({"every": 30, "calendar": {"name": 1}}, "schedule.calendar.name", "a number is not a name"),
    (
        {"every": 30, "calendar": {"name": "us", "closed": 1}},
        "schedule.calendar.closed",
        "closed is not known",
    ),
    (
        {"every": 30, "calendar": {"name": "us", "on_closed": "later"}},
        "schedule.calendar.on_closed",
        "later is not known",
    ),
    (
        {"every": 30, "calendar": {"name": "us", "on_closed": "next"}},
        "schedule.calendar.on_closed",
        "an interval has no time on the clock that next could keep",
    ),
    (
        {"cron": "0 9 * * *", "calendar": {"name": "us"}},
        "schedule.calendar.name",
        "the calendar us is not at hand",
    ),
    (
        {"at": "2026-11-18T12:00:00Z", "timezone": "Europe/Berlin"},
        "schedule.at",
        "2026-11-18T12:00:00Z has an offset and a timezone beside it",
    ),
    (
        {"at": "2026-11-18T12:00:00.5", "timezone": "UTC"},
        "schedule.at",
        "2026-11-18T12:00:00.5 has a fraction of a second",
    ),
    ({"at": "tonight", "timezone": "UTC"}, "schedule.at", "'tonight' is not a local time"),
    ({"at": 5, "timezone": "UTC"}, "schedule.at", "a number is not a local time"),
    ({"at": "2026-02-30T12:00", "timezone": "UTC"}, "schedule.at", "2026-02-30T12:00 does not exist"),
    ({"at": "0001-01-01T00:00", "timezone": "Asia/Tokyo"}, "schedule.at", "0001-01-01T00:00 does not exist"),
    ({"at": "1969-12-31T23:00", "timezone": "UTC"}, "schedule.at", "1969-12-31T23:00 is before 1970"),
    (
        {"at": "2026-12-24T18:00", "timezone": "Berlin"},
        "schedule.timezone",
        "Berlin is not a known time zone",
    ),
    ({"every": 30, "timezone": "UTC"}, "schedule.timezone", "timezone has no meaning beside every"),
    (
        {"at": "2026-11-18T12:00:00Z", "ends_at": "2027-01-01T00:00:00Z"},
        "schedule.ends_at",
        "ends_at has no meaning beside at",
    ),
    (
        {"cron": "* * * * *", "timezone": "Mars/Base"},
        "schedule.timezone",
        "Mars/Base is not a known time zone",
    ),
    ({"cron": "* * * * *", "timezone": 2}, "schedule.timezone", "a number is not a zone name"),
    ({"cron": "* * * * *", "timezone": ""}, "schedule.timezone", " is not a known time zone"),
    ({"cron": "* * * * *", "timezone": "../UTC"}, "schedule.timezone", "../UTC is not a known time zone"),
    ({"every": True}, "schedule.every", "a boolean is not an interval"),
    ({"every": {}}, "schedule.every", "an object is not an interval"),
    ({"every": 0}, "schedule.every", "0 is shorter than 1 second"),
    ({"every": -5}, "schedule.every", "-5 is shorter than 1 second"),
    ({"every": 0.999}, "schedule.every", "0.999 is shorter than 1 second"),
    ({"every": 1.0005}, "schedule.every", "1.0005 has a fraction of a millisecond"),
    ({"every": float("nan")}, "schedule.every", "nan is not an interval"),
    ({"every": float("inf")}, "schedule.every", "1000000000000 is longer than 10 years"),
    ({"every": -(10**5000)}, "schedule.every", "-1000000000000 is shorter than 1 second"),
    ({"every": 10**5000}, "schedule.every", "1000000000000 is longer than 10 years"),
    ({"every": 315_360_001}, "schedule.every", "315360001 is longer than 10 years"),
    ({"every": "P3651D"}, "schedule.every", "P3651D is longer than 10 years"),
    ({"every": "PT0.5S"}, "schedule.every", "PT0.5S is shorter than 1 second"),
    ({"every": "PT1.0001S"}, "schedule.every", "PT1.0001S has a fraction of a millisecond"),
    ({"every": "P1M"}, "schedule.every", "P1M has years or months"),
    ({"every": "P1Y"}, "schedule.every", "P1Y has years or months"),
    ({"every": "P1Y2DT3H"}, "schedule.every", "P1Y2DT3H has years or months"),
    ({"every": "P"}, "schedule.every", '"P" is not a duration'),
    ({"every": "PT"}, "schedule.every", '"PT" is not a duration'),
    ({"every": "P1DT"}, "schedule.every", '"P1DT" is not a duration'),
    ({"every": "PT1.5H"}, "schedule.every", '"PT1.5H" is not a duration'),
    ({"every": "-PT5S"}, "schedule.every", '"-PT5S" is not a duration'),
    ({"every": "30"}, "schedule.every", '"30" is not a duration'),
    ({"every": "PT30S\n"}, "schedule.every", '"PT30S\\n" is not a duration'),
    ({"at": 5}, "schedule.at", "a number is not an instant"),
    ({"at": "tomorrow"}, "schedule.at", '"tomorrow" is not an instant'),
    ({"at": "2026-11-18"}, "schedule.at", '"2026-11-18" is not an instant'),
    ({"at": "2026-11-18T12:00:00"}, "schedule.at", "2026-11-18T12:00:00 has no offset, so it is no instant"),
    (
        {"at": "2026-02-30T12:00:00Z"},
        "schedule.at",
        "2026-02-30T12:00:00Z does not exist: there is no such day, time or offset",
    ),
    ({"at": "1969-12-31T23:59:59Z"}, "schedule.at", "1969-12-31T23:59:59Z is before 1970"),
    ({"every": 30, "begins_at": "soon"}, "schedule.begins_at", '"soon" is not an instant'),
    ({"cron": "* * * * *", "ends_at": "soon"}, "schedule.ends_at", '"soon" is not an instant'),
    (
        {"every": 30, "begins_at": "2026-11-18T12:00:00Z", "ends_at": "2026-11-18T12:59:59+01:00"},
        "schedule.ends_at",
        "2026-11-18T12:59:59+01:00 is before begins_at, 2026-11-18T12:00:00Z",
    ),
]


def refused(spec: object) -> BadSchedule:
    with pytest.raises(BadSchedule) as caught:
        parse(spec, hash_id="job")
    return caught.value


@pytest.mark.parametrize("expression", CRON)
def test_a_bad_expression_is_refused_with_field_and_position(expression: str) -> None:
    error = refused({"cron": expression})
    assert (error.field, error.detail) == ("schedule.cron", CRON[expression])
    assert error.hint


@pytest.mark.parametrize(("spec", "field", "detail"), OTHERS, ids=range(len(OTHERS)))
def test_a_bad_schedule_is_refused_by_field(spec: object, field: str, detail: str) -> None:
    error = refused(spec)
    assert (error.field, error.detail) == (field, detail)
    assert error.hint


@pytest.mark.parametrize("at", ["9999-12-31T23:59:59-14:00", "2026-11-18T24:00:00Z", "2026-11-18T12:00:60Z"])
def test_an_instant_that_does_not_exist_is_refused(at: str) -> None:
    assert "does not exist" in refused({"at": at}).detail


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("america/new_york", "America/New_York"),
        ("New York", "America/New_York"),
        ("Berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("utc", "UTC"),
        ("Asia/Culcutta", "Asia/Calcutta"),
    ],
)
def test_an_unknown_zone_is_answered_with_near_names(name: str, near: str) -> None:
    hint = refused({"cron": "* * * * *", "timezone": name}).hint
    assert hint.startswith("did you mean ")
    assert near in hint


def test_a_misspelt_key_is_answered_with_the_known_one() -> None:
    assert refused({"cron": "* * * * *", "time_zone": "UTC"}).hint == "did you mean timezone?"
    assert refused({"interval": "PT5M"}).hint == "did you mean every?"


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("0 22-2 * * *", "a range goes upwards: 22-23,0-2"),
        ("0 0 * * L", "the last of which day? 5L is the last Friday of the month"),
        ("0 0 ? * 1", "write * for any day; days of week count from 0 = SUN"),
        ("61 * * * *", "0 to 59, and *, lists (1,2), ranges (1-3), steps (*/2), H"),
        ("0 0 * 13 *", "1 to 12 or JAN to DEC, and *, lists (1,2), ranges (1-3), steps (*/2), H"),
        ("@reboot", "@yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"),
    ],
)
def test_the_hint_says_what_is_allowed(expression: str, hint: str) -> None:
    assert refused({"cron": expression}).hint == hint


@settings(derandomize=True, deadline=None, max_examples=500, database=None)
@given(st.text(alphabet="0123456789*/-,#LHRW?@() MONJAdaily\t\n", max_size=25))
def test_any_text_is_read_or_refused_and_never_breaks(expression: str) -> None:
    try:
        parse({"cron": expression}, hash_id="job")
    except BadSchedule as error:
        assert error.field == "schedule.cron"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=500, database=None)
@given(
    st.dictionaries(
        st.sampled_from(["cron", "every", "at", "timezone", "begins_at", "ends_at", "calendar", "jitter"]),
        json_values | st.sampled_from(["* * * * *", "PT30S", "2026-11-18T12:00:00Z", "UTC", 30]),
        max_size=4,
    )
)
def test_any_json_is_read_or_refused_and_never_breaks(spec: dict[str, object]) -> None:
    try:
        parse(spec, hash_id="job")
    except BadSchedule as error:
        assert error.field.startswith("schedule")


def test_a_refusal_is_short_however_long_an_instant_is() -> None:
    for offset in ("", "Z"):
        with pytest.raises(BadSchedule) as refusal:
            parse({"at": f"2026-13-18T12:00:00.{'1' * 100_000}{offset}"})
        assert len(str(refusal.value)) < 500
