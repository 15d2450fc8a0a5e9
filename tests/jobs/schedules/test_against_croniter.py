"""Against croniter, which reads expressions on its own. Where the two may differ has a name; anything else fails."""

import logging
import re
from collections.abc import Callable

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.schedules import BadSchedule, Cron, parse
from jobs.schedules.cron import cross_check
from jobs.schedules.cron.cross_check import disagreement
from jobs.services.definition import create_job, edit_job
from tests.support.factories import job_spec, make_pool, make_tenant, post_job

MONTHS = "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC".split()
WEEK_DAYS = "SUN MON TUE WED THU FRI SAT".split()
AGREED = [
    *[
        "* * * * *",
        "*/5 * * * *",
        "5-50/7 1,3,9-12 * * *",
        "1/9 */5 * * *",
        "0-59 0-23 1-31 1-12 0-6",
        "59/15 * * * *",
    ],
    *[
        "0 0 1-7,20 */3 *",
        "0 0 L * *",
        "0 0 1-5,L * *",
        "0 0 1-30,L * *",
        "0 0 L,31 2-4 *",
        "0 0 */2 JAN,jul-Dec *",
    ],
    *[
        "0 0 * * MON-FRI",
        "0 0 * * 0,3,7",
        "0 0 * * 7",
        "0 0 * * 5-7",
        "0 0 * * fri-Sun",
        "0 0 * * SAT-SUN",
        "0 0 * * 3/2",
    ],
    *[
        "0 0 * * 5L",
        "0 0 * * L5",
        "0 0 * * FRIL",
        "0 0 * * lfri",
        "0 0 * * 7L",
        "0 0 * * 5L,L1",
        "0 0 * * SUNL,MONL",
    ],
    *[
        "0 0 * * 5#2",
        "0 0 * * 7#1",
        "0 0 * * mon#3",
        "0 0 * * 1#1,1#3,FRI#5",
        "0 0 * * 5#2,5L",
        "0 0 * * *,5L",
    ],
    *["0 0 13 * 5", "0 0 */2 * 1", "30 */2 * * * *", "*/20 0 0 L 12 *", "5,*/10 1 2 3 4 5", "0 0 29 2 *"],
    *["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly", " @Daily "],
]
# We refuse these with a field, a position and a hint; croniter takes them, and plans what their author may not mean.
REFUSED_BY_US = [
    *[
        "0 22-2 * * *",
        "0 0 5-1 * *",
        "0 0 * NOV-FEB *",
        "0 0 * * 5-1",
        "*/60 * * * *",
        "0 */24 * * *",
        "0 0 */32 * *",
    ],
    *["0 0 ? * 1", "0 0 * * ?", "0 0 15W * *", "R * * * *", "0 0 1 1 * 0 2027", "0 0 31 2 *", "0 0 30 FEB *"],
]
REFUSED_BY_BOTH = [
    *[
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "0 0 0 * *",
        "0 0 * 13 *",
        "0 0 * * 8",
        "@reboot",
        "a * * * *",
    ],
    "0 0 * * L",
]


def read(expression: str) -> Cron:
    schedule = parse({"cron": expression})
    assert isinstance(schedule, Cron)
    return schedule


def difference(expression: str) -> str:
    schedule = read(expression)
    return disagreement(schedule.expression, schedule.pattern)


def of_one_value(expression: str) -> bool:
    """croniter takes a range from a value to itself, such as 3-3, for the whole field; to us it is that value."""
    for low, high in re.findall(r"(\w+)-(\w+)", expression.upper()):
        if number(low) == number(high):
            return True
    return False


def of_sundays_as_seven(expression: str) -> bool:
    """7/2 is Sunday alone to us. croniter counts its steps from 0, which is Sunday as well."""
    return re.search(r"(^|,)0*7/", expression.split()[-1]) is not None


def of_plain_and_counted_days(expression: str) -> bool:
    """croniter reads days of the week either plainly or with # and L, and refuses or drops the plain ones."""
    parts = expression.upper().split()[-1].split(",")
    counted = [part for part in parts if "#" in part or "L" in part]
    return 0 < len(counted) < len(parts)


ALLOWED: list[Callable[[str], bool]] = [of_one_value, of_sundays_as_seven, of_plain_and_counted_days]


def number(text: str) -> int:
    for names, low in ((MONTHS, 1), (WEEK_DAYS, 0)):
        if text in names:
            return names.index(text) + low
    return int(text)


def fields(low: int, high: int, names: list[str] | None = None) -> st.SearchStrategy[str]:
    """Read field texts of every form, half of which stand for every value."""
    values = st.integers(low, high).map(str)
    if names:
        values = st.one_of(values, st.sampled_from(names), st.sampled_from(names).map(str.lower))
    ranges = st.tuples(values, values).map("-".join)
    bases = st.one_of(st.just("*"), values, ranges)
    stepped = st.tuples(bases, st.integers(1, high).map(str)).map("/".join)
    lists = st.lists(st.one_of(bases, stepped), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), lists)


def expressions() -> st.SearchStrategy[str]:
    month_days = st.one_of(fields(1, 31), fields(1, 31).map("L,{}".format), st.just("L"))
    counted = st.sampled_from(["5L", "L5", "FRIL", "lfri", "0#1", "7#2", "mon#3", "7L", "SUNL", "5#5"])
    week_days = st.one_of(
        fields(0, 7, WEEK_DAYS),
        st.lists(counted, min_size=1, max_size=3).map(",".join),
        st.tuples(counted, fields(0, 7, WEEK_DAYS)).map(",".join),
    )
    five = st.tuples(fields(0, 59), fields(0, 23), month_days, fields(1, 12, MONTHS), week_days).map(" ".join)
    return st.one_of(five, st.tuples(fields(0, 59), five).map(" ".join))


@pytest.mark.parametrize("expression", AGREED)
def test_known_expressions_are_read_as_croniter_reads_them(expression: str) -> None:
    assert difference(expression) == ""


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=1_500, database=None)
@given(expressions())
def test_any_expression_is_read_as_croniter_reads_it_but_for_named_rules(expression: str) -> None:
    try:
        found = difference(expression)
    except BadSchedule:
        return
    assert not found or any(rule(expression) for rule in ALLOWED), found


@pytest.mark.parametrize(
    ("rule", "expression", "said"),
    [
        (of_one_value, "5-5 * * * *", "minute"),
        (of_one_value, "0 0 * AUG-8 *", "month"),
        (of_one_value, "0 0 3-3/2 * *", "day-of-month or day-of-week"),
        (of_one_value, "7-7 0 0 * * *", "second"),
        (of_sundays_as_seven, "0 0 * * 7/2", "day-of-month or day-of-week"),
        (of_plain_and_counted_days, "0 0 * * 1,5#2", "it refuses it: .* mixing literal values"),
        (of_plain_and_counted_days, "0 0 * * FRIL,5", "day-of-month or day-of-week"),
    ],
)
def test_each_named_rule_is_needed(rule: Callable[[str], bool], expression: str, said: str) -> None:
    assert re.match(said, difference(expression))
    assert [other for other in ALLOWED if other(expression)] == [rule]


@pytest.mark.parametrize("expression", REFUSED_BY_US)
def test_what_croniter_takes_and_we_refuse(expression: str) -> None:
    croniter.expand(expression)
    with pytest.raises(BadSchedule):
        read(expression)


@pytest.mark.parametrize("expression", REFUSED_BY_BOTH)
def test_what_both_refuse(expression: str) -> None:
    with pytest.raises(ValueError):
        croniter.expand(expression)
    with pytest.raises(BadSchedule):
        read(expression)


def test_hashed_times_are_not_compared() -> None:
    assert difference("H H(2-5) * * *") == ""


@pytest.mark.django_db
def test_a_job_that_croniter_reads_differently_is_saved_as_we_read_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_pool(slug="default")
    with caplog.at_level(logging.WARNING, logger=cross_check.__name__):
        job = create_job(make_tenant(), job_spec(schedule={"cron": "0 0 3-3 * *", "timezone": "UTC"}))
    assert [record.getMessage() for record in caplog.records] == [
        "croniter reads the cron expression 0 0 3-3 * * differently: day-of-month or day-of-week"
    ]
    assert job.clock.next_run_at is not None and job.clock.next_run_at.day == 3
    caplog.clear()
    edit_job(job, {"schedule": {"cron": "0 0 * * 7/2"}})
    assert "7/2" in caplog.text
    caplog.clear()
    edit_job(job, {"schedule": {"cron": "0 0 3 * *"}})
    assert not caplog.records


@pytest.mark.django_db
def test_a_fault_of_croniter_refuses_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("fault")

    monkeypatch.setattr(croniter, "expand", fail)
    assert post_job(schedule={"cron": "0 0 3 * *"}).clock.next_run_at is not None
    assert "it refuses it: 'fault'" in caplog.text


@pytest.mark.django_db
def test_our_parser_explains_a_refusal_whatever_croniter_reads() -> None:
    make_pool(slug="default")
    with pytest.raises(InvalidInput) as refused:
        create_job(make_tenant(), job_spec(schedule={"cron": "0 22-2 * * *"}))
    [error] = refused.value.errors
    assert (error.field, error.detail) == (
        "schedule.cron",
        "hour field (2nd): 22-2 goes backwards, at character 3",
    )
    assert error.hint == "a range goes upwards: 22-23,0-2" and not Job.objects.exists()
