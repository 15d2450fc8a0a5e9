"""The time rules, said once more by walking the clock, and held against the code in every zone."""

import random
from bisect import bisect_right
from collections.abc import Callable
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.schedules import BadSchedule, Cron, Schedule, due_times, last_before, next_after, parse, upcoming
from tests.jobs.schedules.zone_changes import UTC, ZONES, Change, changes

MINUTE = timedelta(minutes=1)
SECOND = timedelta(seconds=1)

Matches = Callable[[datetime], bool]
INTERVAL_LIKE: dict[str, Matches] = {
    "*/15 * * * *": lambda w: w.minute % 15 == 0,
    "7 * * * *": lambda w: w.minute == 7,
    "0 */2 * * *": lambda w: w.minute == 0 and w.hour % 2 == 0,
    "30 */3 * * 0-3": lambda w: w.minute == 30 and w.hour % 3 == 0 and w.isoweekday() % 7 <= 3,
}
WALL_CLOCK: dict[str, Matches] = {
    "30 2 * * *": lambda w: (w.hour, w.minute) == (2, 30),
    "0 0 * * *": lambda w: (w.hour, w.minute) == (0, 0),
    "*/20 0-3 * * *": lambda w: w.minute % 20 == 0 and w.hour <= 3,
    "15,45 1,23 * * *": lambda w: w.minute in {15, 45} and w.hour in {1, 23},
    "5 0-23 * * FRI-SUN": lambda w: w.minute == 5 and w.isoweekday() >= 5,
    "*/30 2 L * 0": lambda w: (
        w.minute in {0, 30}
        and w.hour == 2
        and (w.isoweekday() == 7 or (w + timedelta(days=1)).month != w.month)
    ),
}


def cron(expression: str, zone: str) -> Schedule:
    return parse({"cron": expression, "timezone": zone}, hash_id="job")


def has_a_date(expression: str) -> bool:
    """Days drawn at random may exclude each other, as every third day does the fifth Monday of February."""
    try:
        cron(expression, "UTC")
    except BadSchedule as refused:
        return "no date ever matches" not in refused.detail
    return True


def walked_by_elapsed_time(shown: list[tuple[datetime, datetime]], matches: Matches) -> list[datetime]:
    return [instant for instant, wall in shown if matches(wall)]


def walked_by_wall_clock(
    shown: list[tuple[datetime, datetime]], matches: Matches, step: timedelta = MINUTE
) -> list[datetime]:
    """Fire when the hand reaches or passes a matching time that it had not reached before."""
    fired = []
    highest = shown[0][1] - step
    for instant, wall in shown:
        passed = []
        while highest < wall:
            highest += step
            passed.append(highest)
        if any(matches(time) for time in passed):
            fired.append(instant)
    return fired


def clock(zone: str, first: datetime, last: datetime, step: timedelta) -> list[tuple[datetime, datetime]]:
    count = (last - first) // step
    tz = ZoneInfo(zone)
    instants = [first + n * step for n in range(count + 1)]
    return [(i, i.astimezone(tz).replace(tzinfo=None, fold=0)) for i in instants]


def minute_changes(zone: str) -> list[Change]:
    return [c for c in changes(zone) if not c.at.second and not c.jump % MINUTE]


def interesting_changes(zone: str) -> list[Change]:
    """Return the greatest leap and another one; zones that never change are checked all the same."""
    found = minute_changes(zone)
    if not found:
        return [Change(datetime(2026, 3, 29, 1, tzinfo=UTC), timedelta(0))]
    return [max(found, key=lambda c: abs(c.jump)), random.Random(zone).choice(found)]


def assert_as_walked(schedule: Schedule, walked: list[datetime], first: datetime, last: datetime) -> None:
    found = upcoming(schedule, first - SECOND, len(walked) + 1, anchor=first)
    assert [t for t in found if t <= last] == walked
    for number, planned in enumerate(walked):
        moment = planned + (-SECOND, timedelta(0), MINUTE)[number % 3]
        if moment <= last:
            latest = bisect_right(walked, moment) - 1
            found_before = last_before(schedule, moment, anchor=first, not_before=first)
            assert found_before == (walked[latest] if latest >= 0 else None)
            later = bisect_right(walked, moment)
            if later < len(walked):
                assert next_after(schedule, moment, anchor=first) == walked[later]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(8))
def test_every_zone_fires_as_its_clock_walks_through_a_change(part: int) -> None:
    for zone in ZONES[part::8]:
        for change in interesting_changes(zone):
            first, last = change.at - timedelta(hours=4), change.at + timedelta(hours=27)
            shown = clock(zone, first, last, MINUTE)
            for expression, matches in INTERVAL_LIKE.items():
                walked = walked_by_elapsed_time(shown, matches)
                assert_as_walked(cron(expression, zone), walked, first, last)
            for expression, matches in WALL_CLOCK.items():
                walked = walked_by_wall_clock(shown, matches)
                assert_as_walked(cron(expression, zone), walked, first, last)


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "Pacific/Apia"]
)
def test_a_change_is_found_to_the_second(zone: str) -> None:
    for change in {max(changes(zone), key=lambda c: c.jump), min(changes(zone), key=lambda c: c.jump)}:
        first, last = change.at - timedelta(minutes=40), change.at + timedelta(minutes=70)
        shown = clock(zone, first, last, SECOND)
        by_elapsed_time = walked_by_elapsed_time(shown, lambda w: w.second % 40 == 7)
        assert_as_walked(cron("7,47 * * * * *", zone), by_elapsed_time, first, last)
        by_wall_clock = walked_by_wall_clock(shown, lambda w: w.second % 40 == 7, SECOND)
        assert_as_walked(cron("7,47 * 0-23 * * *", zone), by_wall_clock, first, last)


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    one = st.integers(low, high).map(str)
    some = st.lists(st.integers(low, high), min_size=2, max_size=4).map(lambda v: ",".join(map(str, v)))
    span = st.tuples(st.integers(low, high), st.integers(low, high)).map(lambda v: f"{min(v)}-{max(v)}")
    every = st.integers(1, max(2, high // 2)).map(lambda n: f"*/{n}")
    return st.one_of(st.just("*"), one, some, span, every)


def expressions() -> st.SearchStrategy[str]:
    month_days = st.one_of(st.just("*"), st.just("*"), numbers(1, 28), st.just("L"))
    week_days = st.one_of(
        st.just("*"), st.just("*"), numbers(0, 6), st.sampled_from(["5L", "0#1", "7", "1#5", "0L", "5-7"])
    )
    months = st.one_of(st.just("*"), st.just("*"), numbers(1, 12))
    five = st.tuples(numbers(0, 59), numbers(0, 23), month_days, months, week_days).map(" ".join)
    six = st.tuples(numbers(0, 59), five).map(" ".join)
    return st.one_of(five, six).filter(has_a_date)


@st.composite
def zones_and_instants(draw: st.DrawFn) -> tuple[str, datetime]:
    """Half of the instants lie within three hours of a change of their zone."""
    zone = draw(st.sampled_from(ZONES))
    near = changes(zone)
    is_near: bool = draw(st.booleans())
    if near and is_near:
        change = draw(st.sampled_from(near))
        return zone, change.at + timedelta(milliseconds=draw(st.integers(-10_800_000, 10_800_000)))
    return zone, datetime(1970, 1, 2, tzinfo=UTC) + timedelta(seconds=draw(st.integers(0, 130 * 31_556_952)))


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=600, database=None)
@given(expressions(), zones_and_instants())
def test_planned_times_keep_their_promises(expression: str, zone_and_instant: tuple[str, datetime]) -> None:
    zone, start = zone_and_instant
    schedule = cron(expression, zone)
    assert isinstance(schedule, Cron)
    times = upcoming(schedule, start, 12, anchor=start)
    assert len(times) == 12
    assert times[0] > start
    assert all(earlier < later for earlier, later in zip(times, times[1:], strict=False))
    assert due_times(schedule, times[0], times[5], anchor=start, limit=99) == times[:6]
    assert due_times(schedule, times[0], times[5], anchor=start, limit=3) == times[:3]
    previous_walls = set()
    for planned in times:
        assert planned.tzinfo is UTC
        assert planned.microsecond == 0
        wall = planned.astimezone(schedule.zone).replace(tzinfo=None, fold=0)
        shows_a_match = schedule.pattern.first_from(wall) == wall
        assert shows_a_match or (not schedule.pattern.interval_like and ends_a_gap(schedule.zone, planned))
        if not schedule.pattern.interval_like:
            assert wall not in previous_walls
        previous_walls.add(wall)


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=600, database=None)
@given(expressions(), zones_and_instants())
def test_looking_back_and_looking_ahead_agree(
    expression: str, zone_and_instant: tuple[str, datetime]
) -> None:
    zone, moment = zone_and_instant
    schedule = cron(expression, zone)
    long_ago = datetime(1970, 1, 1, tzinfo=UTC)
    ahead = next_after(schedule, moment, anchor=moment)
    behind = last_before(schedule, moment, anchor=moment, not_before=long_ago)
    assert ahead is not None
    assert last_before(schedule, ahead, anchor=moment, not_before=long_ago) == ahead
    assert last_before(schedule, ahead - SECOND, anchor=moment, not_before=long_ago) == behind
    if behind is not None:
        assert behind <= moment
        assert next_after(schedule, behind, anchor=moment) == ahead
        assert last_before(schedule, moment, anchor=moment, not_before=behind) == behind
        assert last_before(schedule, moment, anchor=moment, not_before=behind + SECOND) is None


@settings(derandomize=True, deadline=None, max_examples=200, database=None)
@given(st.sampled_from([1, 2, 3, 5, 10, 15, 30]), st.sampled_from(ZONES), st.data())
def test_interval_like_times_stay_even_through_a_fold(step: int, zone: str, data: st.DataObject) -> None:
    folds = [c for c in minute_changes(zone) if c.jump < timedelta(0) and not c.jump % (step * MINUTE)]
    if not folds:
        return
    fold = data.draw(st.sampled_from(folds))
    schedule = cron(f"*/{step} * * * *", zone)
    times = upcoming(schedule, fold.at - timedelta(hours=2), 240 // step, anchor=fold.at)
    assert {later - earlier for earlier, later in zip(times, times[1:], strict=False)} == {step * MINUTE}


def ends_a_gap(zone: ZoneInfo, instant: datetime) -> bool:
    before = (instant - SECOND).astimezone(zone).replace(tzinfo=None)
    return instant.astimezone(zone).replace(tzinfo=None) - before > SECOND


def test_the_walker_itself_knows_what_a_gap_and_a_fold_are() -> None:
    gap = clock(
        "Europe/Berlin", datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 3, 29, 3, tzinfo=UTC), MINUTE
    )
    at_half_past_two = WALL_CLOCK["30 2 * * *"]
    assert walked_by_wall_clock(gap, at_half_past_two) == [datetime(2026, 3, 29, 1, tzinfo=UTC)]
    assert walked_by_elapsed_time(gap, at_half_past_two) == []
    fold = clock(
        "Europe/Berlin", datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 25, 3, tzinfo=UTC), MINUTE
    )
    first, second = (datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1))
    assert walked_by_wall_clock(fold, at_half_past_two) == [first]
    assert walked_by_elapsed_time(fold, at_half_past_two) == [first, second]
