"""Against cronsim, which reads and walks on its own. Where the two may differ has a name; anything else fails."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings

from jobs.schedules import Cron, upcoming
from tests.jobs.schedules.test_zones import cron, expressions, zones_and_instants
from tests.jobs.schedules.zone_changes import SECOND, UTC, Change, changes

HOUR = timedelta(hours=1)
NEVER = Change(datetime(2026, 3, 1, tzinfo=UTC), timedelta(0))
ZONES = """UTC America/New_York America/Sao_Paulo America/Havana America/Santiago America/Caracas America/Nuuk
    Europe/Berlin Europe/London Europe/Dublin Africa/Cairo Africa/Casablanca Africa/Monrovia Antarctica/Troll
    Asia/Beirut Asia/Kolkata Asia/Kathmandu Asia/Pyongyang Asia/Tehran Australia/Lord_Howe Australia/Sydney
    Pacific/Apia Pacific/Chatham Pacific/Kwajalein""".split()
EXPRESSIONS = [
    *["* * * * *", "*/5 * * * *", "*/15 * * * *", "7 * * * *", "0 */2 * * *", "0 */3 * * *", "30 */1 * * *"],
    *["30 2 * * *", "0 2 * * *", "30 1 * * *", "0 0 * * *", "15,45 0 * * *", "15 2-3 * * *", "0 0-5 * * *"],
    *["*/10 1-3 * * *", "*/30 2 * * *", "* 2 * * *", "0 */2,5 * * *", "10 0-23 * * *", "30 0-23/2 * * *"],
    *["0 12 * * *", "59 23 * * *", "0 0 1 * *", "0 0 L * *", "0 3 * * SUN", "0 3 * * 0", "0 3 * * 7"],
    *["30 2 * * 5L", "30 2 * * 0#1", "30 2 * 3 0#2", "0 1 */2 * 0", "0 1 1-7 * 0", "0 0 1,15 * FRI"],
    *[
        "0 0 */2 * *",
        "0 4 * * */2",
        "0 4 * * 3/2",
        "0 0 29 2 *",
        "0 0 31 * *",
        "0 0 * JAN,JUL *",
        "0 0 13 * 5",
    ],
    *["5/20 8-17/3 * * MON-FRI", "0 2 8-14 3 *", "45 23 * * 6", "*/7 3 1-10 3,11 *", "0 0 L 2 *"],
    *["0 30 2 * * *", "15 30 1 * * *", "*/20 * * * * *", "0 */10 * * * *", "30 0 */2 * * *", "0 0 0 * * *"],
]


@dataclass(frozen=True)
class Difference:
    expression: str
    zone: ZoneInfo
    instant: datetime
    ours: bool  # planned by us and not by cronsim, or the other way round

    @property
    def fields(self) -> list[str]:
        return self.expression.split()

    def cronsim_goes_by_elapsed_time(self) -> bool:
        minute, hour = self.fields[-5:-3]
        return minute.startswith("*") or hour.startswith("*") or len(self.fields) == 6

    def change_within(self, before: timedelta) -> Change | None:
        near = (c for c in changes(self.zone.key) if timedelta(0) <= self.instant - c.at <= before)
        return next(near, None)


def cronsim_takes_other_patterns_for_interval_like(difference: Difference) -> bool:
    """Return whether cronsim takes the pattern for elapsed time where we take it for wall-clock time.

    To us only an hour field of `*` or `*/n` is elapsed; to cronsim so is any minute or hour field that begins with `*`,
    and any six fields. So only we make up for a gap, and only cronsim fires in the second pass of a fold.
    """
    hour = difference.fields[-4]
    to_us = hour == "*" or (hour.startswith("*/") and hour[2:].isdigit())
    if to_us or not difference.cronsim_goes_by_elapsed_time():
        return False
    if difference.ours:
        change = difference.change_within(timedelta(0))
        return change is not None and change.jump > timedelta(0)
    return difference.instant.astimezone(difference.zone).fold == 1


def cronsim_steps_whole_hours_over_a_change_off_the_hour(difference: Difference) -> bool:
    """Where it goes by elapsed time it adds hours until the hour matches, and then has left minutes behind."""
    change = difference.change_within(timedelta(hours=25))
    if change is None or not difference.ours or not difference.cronsim_goes_by_elapsed_time():
        return False
    return change.jump % HOUR != timedelta(0) or change.at.astimezone(difference.zone).minute != 0


def cronsim_ends_a_gap_at_a_full_minute(difference: Difference) -> bool:
    """Africa/Monrovia's ended at 00:44:30."""
    change = difference.change_within(timedelta(minutes=1))
    return change is not None and change.at.second != 0 and change.jump > timedelta(0)


def cronsim_counts_steps_of_week_days_to_seven(difference: Difference) -> bool:
    """`3/2` is Wednesday and Friday to us, and Sunday as well to cronsim."""
    week_day = difference.instant.astimezone(difference.zone).isoweekday()
    return difference.fields[-1] == "3/2" and not difference.ours and week_day == 7


ALLOWED: list[Callable[[Difference], bool]] = [
    cronsim_takes_other_patterns_for_interval_like,
    cronsim_steps_whole_hours_over_a_change_off_the_hour,
    cronsim_ends_a_gap_at_a_full_minute,
    cronsim_counts_steps_of_week_days_to_seven,
]


def differences(expression: str, zone_name: str, start: datetime, count: int) -> list[Difference]:
    schedule = cron(expression, zone_name)
    assert isinstance(schedule, Cron)
    ours = upcoming(schedule, start, count, anchor=start)
    walk = (planned.astimezone(UTC) for planned in CronSim(expression, start.astimezone(schedule.zone)))
    # Started in the second pass of a fold, cronsim goes back to the first.
    theirs = list(islice((planned for planned in walk if planned > start), count))
    if not theirs:
        return []  # it gives up after 50 years
    both_end = min(ours[-1], theirs[-1])
    differing = {t for t in ours if t <= both_end} ^ {t for t in theirs if t <= both_end}
    return [Difference(expression, schedule.zone, t, t in ours) for t in sorted(differing)]


def unexplained(found: list[Difference]) -> list[Difference]:
    return [difference for difference in found if not any(rule(difference) for rule in ALLOWED)]


def looked_at(zone: str) -> set[Change]:
    known = list(changes(zone)) or [NEVER]
    return {max(known, key=lambda c: abs(c.jump)), *known[-2:]}


@pytest.mark.exhaustive
@pytest.mark.parametrize("zone", ZONES)
def test_known_expressions_differ_from_cronsim_by_named_rules_only(zone: str) -> None:
    for change in looked_at(zone):
        for expression in EXPRESSIONS:
            frequent = expression in {"* * * * *", "*/20 * * * * *"}
            start = change.at - timedelta(hours=2 if frequent else 30)
            assert unexplained(differences(expression, zone, start, 300 if frequent else 24)) == []


@pytest.mark.exhaustive
@settings(derandomize=True, deadline=None, max_examples=250, database=None)
@given(expressions(), zones_and_instants())
def test_any_expression_differs_from_cronsim_by_named_rules_only(
    expression: str, zone_and_instant: tuple[str, datetime]
) -> None:
    zone, start = zone_and_instant
    assert unexplained(differences(expression, zone, start, 12)) == []


@pytest.mark.parametrize(
    ("rule", "expression", "zone", "change"),
    [
        (ALLOWED[0], "*/30 2 * * *", "Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
        (ALLOWED[0], "0 30 2 * * *", "Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
        (ALLOWED[1], "0 */2 * * *", "Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),
        (ALLOWED[2], "0 0 * * *", "Africa/Monrovia", datetime(1972, 1, 7, 0, 44, 30, tzinfo=UTC)),
        (ALLOWED[3], "0 4 * * 3/2", "UTC", datetime(2026, 3, 1, tzinfo=UTC)),
    ],
)
def test_each_named_rule_is_needed(
    rule: Callable[[Difference], bool], expression: str, zone: str, change: datetime
) -> None:
    found = differences(expression, zone, change - 3 * HOUR - SECOND, 4)
    assert found
    others = [other for other in ALLOWED if other is not rule]
    assert all(rule(difference) for difference in found)
    assert not any(other(difference) for difference in found for other in others)
