"""The flexible window, and H: both spread jobs, and neither depends on the process that asks."""

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from uuid import UUID

import pytest

from jobs.schedules import Cron, Schedule, describe, jittered, parse, read_calendar, upcoming

UTC = timezone.utc
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
JOB = UUID("0190f2a4-7a10-7c3e-8a55-3a1f6f3f3a10")
MINUTE = timedelta(minutes=1)


def delays(schedule: Schedule, times: int, job: object = JOB) -> list[timedelta]:
    planned = upcoming(schedule, NOON, times, anchor=NOON)
    return [jittered(schedule, job, at) - at for at in planned]


def chi_square(delays: list[timedelta], window: timedelta, cells: int) -> float:
    counts = [0] * cells
    for delay in delays:
        counts[int(delay / window * cells)] += 1
    expected = len(delays) / cells
    return sum((count - expected) ** 2 / expected for count in counts)


def test_without_a_window_a_run_begins_at_its_time() -> None:
    assert delays(parse({"every": 60}), 3) == [timedelta(0)] * 3


def test_a_run_begins_within_its_window_at_a_whole_millisecond() -> None:
    found = delays(parse({"cron": "0 * * * *", "jitter": "PT5M"}), 500)
    assert all(timedelta(0) <= delay < 5 * MINUTE for delay in found)
    assert not any(delay.microseconds % 1000 for delay in found)
    assert len(set(found)) > 490


def test_it_is_the_same_whenever_and_wherever_it_is_asked() -> None:
    schedule = parse({"cron": "0 * * * *", "jitter": "PT5M"})
    assert jittered(schedule, JOB, NOON) == NOON + timedelta(minutes=3, seconds=47, milliseconds=583)
    assert jittered(schedule, str(JOB), NOON) == jittered(schedule, JOB, NOON)
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    assert jittered(schedule, JOB, elsewhere) == jittered(schedule, JOB, NOON)


def test_the_runs_of_a_job_spread_evenly_over_the_window() -> None:
    """Of 20 cells, 19 degrees of freedom: evenly spread ones are above 44 once in a thousand times."""
    assert chi_square(delays(parse({"cron": "0 * * * *", "jitter": "PT5M"}), 4000), 5 * MINUTE, 20) < 44


def test_jobs_of_the_same_instant_spread_evenly_over_the_window() -> None:
    schedule = parse({"cron": "0 * * * *", "jitter": "PT5M"})
    found = [jittered(schedule, UUID(int=number << 64 | number), NOON) - NOON for number in range(4000)]
    assert chi_square(found, 5 * MINUTE, 20) < 44


@pytest.mark.parametrize("spec", [{"every": 10}, {"cron": "*/10 * * * * *"}, {"cron": "0,50 * * * * *"}])
def test_a_window_ends_before_the_next_planned_time(spec: dict[str, object]) -> None:
    schedule = parse({**spec, "jitter": "P1D"})
    planned = upcoming(schedule, NOON, 200, anchor=NOON)
    begun = [jittered(schedule, JOB, at) for at in planned]
    assert all(at <= instant for at, instant in zip(planned, begun, strict=True))
    assert all(earlier < later for earlier, later in pairwise(begun))
    assert all(instant < following for instant, following in zip(begun, planned[1:], strict=False))


def test_the_last_time_has_its_whole_window() -> None:
    once = parse({"at": "2026-11-18T12:00:00Z", "jitter": 3600})
    later = {jittered(once, UUID(int=number), NOON) - NOON > 30 * MINUTE for number in range(40)}
    assert later == {True, False}


def test_a_window_keeps_to_the_times_of_a_calendar() -> None:
    """Friday's last time and Monday's first are far apart: its window is not cut by what is closed."""
    weekdays = {day: [["09:00", "17:00"]] for day in ("mon", "tue", "wed", "thu", "fri")}
    spec = {"cron": "0 16 * * *", "calendar": {"name": "office"}, "jitter": "PT2H"}
    schedule = parse(spec, "", read_calendar({"weekly": weekdays}))
    found = delays(schedule, 300)
    assert max(found) > 110 * MINUTE and max(found) < 120 * MINUTE
    assert (
        describe(schedule) == "At 16:00 every day, UTC, not when office is closed, beginning within 2 hours"
    )
    assert schedule.as_json() == {
        "cron": "0 16 * * *",
        "timezone": "UTC",
        "jitter": 7200,
        "calendar": {"name": "office", "on_closed": "exclude"},
    }
    assert parse(schedule.as_json(), "", schedule.working) == schedule  # type: ignore[attr-defined]


# H


def hashed(expression: str, number: int) -> Cron:
    schedule = parse({"cron": expression}, f"job-{number}")
    assert isinstance(schedule, Cron)
    return schedule


@pytest.mark.parametrize(
    ("expression", "field", "values"),
    [
        ("H * * * * *", "seconds", range(60)),
        ("H * * * *", "minutes", range(60)),
        ("0 H * * *", "hours", range(24)),
        ("0 0 H * *", "month_days", range(1, 29)),
        ("0 0 1 H *", "months", range(1, 13)),
        ("0 0 * * H", "week_days", range(7)),
        ("H(10-19) * * * *", "minutes", range(10, 20)),
    ],
)
def test_h_spreads_evenly_over_all_values_of_each_field(expression: str, field: str, values: range) -> None:
    counts = dict.fromkeys(values, 0)
    for number in range(4000):
        pattern = hashed(expression, number).pattern
        found = getattr(pattern, field) if hasattr(pattern, field) else getattr(pattern.days, field)
        [value] = found
        counts[value] += 1
    expected = 4000 / len(values)
    statistic = sum((count - expected) ** 2 / expected for count in counts.values())
    # Its mean is the degrees of freedom, its deviation the root of twice as many.
    freedom = len(values) - 1
    assert statistic < freedom + 3.5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("step", [2, 5, 15, 30])
def test_h_with_a_step_keeps_it_and_spreads_where_it_begins(step: int) -> None:
    begins = set()
    for number in range(500):
        minutes = hashed(f"H/{step} * * * *", number).pattern.minutes
        assert {later - earlier for earlier, later in pairwise(minutes)} <= {step} and minutes[0] < step
        begins.add(minutes[0])
    assert begins == set(range(step))


def test_fields_of_one_job_are_spread_apart_from_each_other() -> None:
    same = sum(1 for n in range(2000) if (p := hashed("H H H * * *", n).pattern).seconds == p.minutes)
    assert same < 2000 / 60 * 2
