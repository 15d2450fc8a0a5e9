import math
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from scheduler_project.sdk.outcomes import SUCCEEDED, Outcome, stated_failure
from scheduler_project.sdk.retries import LONGEST_REQUESTED_DELAY, Verdict, decide

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
RETRY = {"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 60.0}


def failed(error_class: str = "transient", **fields: Any) -> Outcome:
    return replace(stated_failure(error_class, "Error", "line", AT, AT), **fields)


def latest(_low: float, high: float) -> float:
    return high


def test_success_is_success_at_any_attempt() -> None:
    assert decide(Outcome(SUCCEEDED, AT, AT), 9, RETRY) == Verdict("succeeded")


@pytest.mark.parametrize(("attempt", "delay"), [(1, 10.0), (2, 20.0), (3, 40.0)])
def test_the_back_off_doubles(attempt: int, delay: float) -> None:
    assert decide(failed(), attempt, RETRY, latest) == Verdict("delayed", delay)


def test_the_back_off_ends_at_its_cap() -> None:
    assert decide(failed(), 900, {**RETRY, "max_attempts": 1000}, latest).delay == 60.0


def test_delays_are_spread_from_zero_to_the_back_off() -> None:
    delays = {decide(failed(), 1, RETRY).delay for _ in range(200)}
    assert min(delays) < 2 and max(delays) > 8 and max(delays) <= 10


def test_the_last_attempt_is_dead() -> None:
    assert decide(failed(), 4, RETRY) == Verdict("dead")


@pytest.mark.parametrize("error_class", ["permanent", "user", "cancelled"])
def test_what_cannot_get_better_is_not_tried_again(error_class: str) -> None:
    assert decide(failed(error_class), 1, RETRY).state == "dead"


@pytest.mark.parametrize("error_class", ["transient", "timeout", "worker_lost"])
def test_what_may_get_better_is_tried_again(error_class: str) -> None:
    assert decide(failed(error_class), 1, RETRY).state == "delayed"


def test_a_requested_delay_wins_but_is_bounded() -> None:
    assert decide(failed(retry_after=7.0), 1, RETRY).delay == 7.0
    assert decide(failed(retry_after=1e12), 1, RETRY).delay == LONGEST_REQUESTED_DELAY
    assert decide(failed(retry_after=-5.0), 1, RETRY).delay == 0.0


@pytest.mark.parametrize(("backoff", "delay"), [("fixed", 10.0), ("linear", 30.0)])
def test_fixed_and_linear_back_offs_grow_as_named(backoff: str, delay: float) -> None:
    assert decide(failed(), 3, {**RETRY, "backoff": backoff}, latest).delay == delay


def test_without_a_policy_the_default_holds() -> None:
    assert decide(failed(), 3, {}).state == "delayed"
    assert decide(failed(), 4, None).state == "dead"


@pytest.mark.parametrize("asked", [math.nan, math.inf, -math.inf])
def test_a_delay_that_is_no_number_is_not_obeyed(asked: float) -> None:
    assert decide(failed(retry_after=asked), 1, RETRY, latest) == Verdict("delayed", 10.0)
