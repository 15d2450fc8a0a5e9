"""Declarations and the API read durations by one rule."""

from datetime import timedelta
from decimal import Decimal

import pytest

from jobs.errors import InvalidInput
from jobs.schedules import BadSchedule, Interval, parse
from jobs.validation import durations
from scheduler_project.sdk.declarations.checks import InvalidDeclaration, seconds
from scheduler_project.sdk.declarations.durations import seconds_of

LENGTHS = {
    "PT30S": Decimal(30),
    "PT1H30M": Decimal(5400),
    "P1D": Decimal(86_400),
    "P1W2DT3H4M5.25S": Decimal("788645.25"),
    "PT0.001S": Decimal("0.001"),
}
WRONG = [
    "",
    "P",
    "PT",
    "30",
    "PT30",
    "P1Y",
    "P1M",
    "PT1,5S",
    "PT.5S",
    "pt30s",
    " PT1S",
    "PT1S\n",
    "P-1D",
    "P1DT",
    "PT\u0663S",
]
NOTHING, YEAR = timedelta(0), timedelta(days=366)


@pytest.mark.parametrize(("text", "length"), LENGTHS.items())
def test_a_duration_lasts_the_same_for_everyone(text: str, length: Decimal) -> None:
    assert seconds_of(text) == length
    assert seconds("jitter", text) == text
    assert durations.read(text, "timeout", NOTHING, YEAR) == timedelta(seconds=float(length))
    if length >= 1:
        schedule = parse({"every": text})
        assert isinstance(schedule, Interval) and schedule.every == timedelta(seconds=float(length))


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_duration_is_none_for_anyone(text: str) -> None:
    assert seconds_of(text) is None
    with pytest.raises(InvalidDeclaration):
        seconds("jitter", text)
    with pytest.raises(InvalidInput):
        durations.read(text, "timeout", NOTHING, YEAR)
    with pytest.raises(BadSchedule):
        parse({"every": text})
