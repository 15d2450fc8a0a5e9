import math
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from scheduler_project.sdk.outcomes import SUCCEEDED, Outcome, failure, stated_failure
from scheduler_project.sdk.retries import (
    DEFAULT_MAX_LOSSES,
    MAX_REQUESTED_DELAY,
    Verdict,
    classified,
    verdict_on,
)

AT = datetime(2026, 1, 1, tzinfo=timezone.utc)
RETRY = {"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 60.0}


def failed(error_class: str = "transient", **fields: Any) -> Outcome:
    return replace(stated_failure(error_class, "Error", "line", AT, AT), **fields)


def latest(_low: float, high: float) -> float:
    return high


def test_success_is_success_at_any_attempt() -> None:
    assert verdict_on(Outcome(SUCCEEDED, AT, AT), 9, RETRY) == Verdict("succeeded")


@pytest.mark.parametrize(("attempt", "delay"), [(1, 10.0), (2, 20.0), (3, 40.0)])
def test_the_back_off_doubles(attempt: int, delay: float) -> None:
    assert verdict_on(failed(), attempt, RETRY, latest) == Verdict("delayed", delay)


def test_the_back_off_ends_at_its_cap() -> None:
    assert verdict_on(failed(), 900, {**RETRY, "max_attempts": 1000}, latest).delay == 60.0


def test_delays_are_spread_from_zero_to_the_back_off() -> None:
    delays = {verdict_on(failed(), 1, RETRY).delay for _ in range(200)}
    assert min(delays) < 2 and max(delays) > 8 and max(delays) <= 10


def test_the_last_attempt_is_dead() -> None:
    assert verdict_on(failed(), 4, RETRY) == Verdict("dead")


@pytest.mark.parametrize("error_class", ["permanent", "user", "cancelled"])
def test_what_cannot_get_better_is_not_tried_again(error_class: str) -> None:
    assert verdict_on(failed(error_class), 1, RETRY).state == "dead"


@pytest.mark.parametrize("error_class", ["transient", "timeout", "worker_lost"])
def test_what_may_get_better_is_tried_again(error_class: str) -> None:
    assert verdict_on(failed(error_class), 1, RETRY).state == "delayed"


def test_a_requested_delay_wins_but_is_bounded() -> None:
    assert verdict_on(failed(retry_after=7.0), 1, RETRY).delay == 7.0
    assert verdict_on(failed(retry_after=1e12), 1, RETRY).delay == MAX_REQUESTED_DELAY
    assert verdict_on(failed(retry_after=-5.0), 1, RETRY).delay == 0.0


@pytest.mark.parametrize(("backoff", "delay"), [("fixed", 10.0), ("linear", 30.0)])
def test_fixed_and_linear_back_offs_grow_as_named(backoff: str, delay: float) -> None:
    assert verdict_on(failed(), 3, {**RETRY, "backoff": backoff}, latest).delay == delay


def test_without_a_policy_the_default_holds() -> None:
    assert verdict_on(failed(), 3, {}).state == "delayed"
    assert verdict_on(failed(), 4, None).state == "dead"


@pytest.mark.parametrize("requested", [math.nan, math.inf, -math.inf])
def test_a_delay_that_is_no_number_is_not_obeyed(requested: float) -> None:
    assert verdict_on(failed(retry_after=requested), 1, RETRY, latest) == Verdict("delayed", 10.0)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_an_immediate_back_off_waits_for_nothing(attempt: int) -> None:
    assert verdict_on(failed(), attempt, {**RETRY, "backoff": "immediate"}, latest) == Verdict("delayed", 0.0)


def test_without_jitter_the_delay_is_the_back_off_itself() -> None:
    delays = {verdict_on(failed(), 2, {**RETRY, "jitter": "none"}).delay for _ in range(20)}
    assert delays == {20.0}


class TestLosses:
    def test_they_take_nothing_from_the_attempts(self) -> None:
        """Two of five attempts ended with their worker: three of four are used."""
        assert verdict_on(failed(), 5, RETRY, latest, losses=2) == Verdict("delayed", 40.0)
        assert verdict_on(failed(), 6, RETRY, latest, losses=2) == Verdict("dead")

    def test_the_attempts_are_no_cap_of_theirs(self) -> None:
        policy = {**RETRY, "max_attempts": 1, "max_losses": 5}
        assert verdict_on(failed("worker_lost"), 4, policy, latest, losses=3).state == "delayed"

    @pytest.mark.parametrize(("most", "losses", "state"), [(1, 0, "dead"), (2, 0, "delayed"), (2, 1, "dead")])
    def test_they_have_a_cap_of_their_own(self, most: int, losses: int, state: str) -> None:
        policy = {**RETRY, "max_losses": most}
        assert verdict_on(failed("worker_lost"), losses + 1, policy, losses=losses).state == state

    def test_a_policy_that_says_nothing_has_the_platforms_cap(self) -> None:
        last = DEFAULT_MAX_LOSSES - 1
        assert verdict_on(failed("worker_lost"), 1, RETRY, losses=last - 1).state == "delayed"
        assert verdict_on(failed("worker_lost"), 1, RETRY, losses=last).state == "dead"

    def test_one_attempt_is_no_second_beginning_unless_it_is_said(self) -> None:
        once = {**RETRY, "max_attempts": 1}
        assert verdict_on(failed("worker_lost"), 1, once).state == "dead"
        assert verdict_on(failed("worker_lost"), 1, {**once, "max_losses": 2}).state == "delayed"

    def test_they_back_off_by_their_own_number(self) -> None:
        policy = {**RETRY, "max_losses": 9}
        assert verdict_on(failed("worker_lost"), 4, policy, latest, losses=0).delay == 10.0
        assert verdict_on(failed("worker_lost"), 4, policy, latest, losses=2).delay == 40.0


class Declined(ValueError):
    """As a code base has them."""


class TestNamedErrors:
    @pytest.mark.parametrize(
        "name",
        ["Declined", f"{__name__}.Declined", "ValueError", "builtins.ValueError", "Exception"],
    )
    def test_an_exception_is_named_by_itself_or_a_base(self, name: str) -> None:
        assert self.class_of(Declined("no"), {"permanent": [name]}) == "permanent"

    @pytest.mark.parametrize("name", ["declined", "Decline", "KeyError", "object", "retries.Declined", ""])
    def test_nothing_else_names_it(self, name: str) -> None:
        assert self.class_of(Declined("no"), {"permanent": [name]}) == "transient"

    def test_the_most_specific_name_wins(self) -> None:
        policy = {"permanent": ["ValueError"], "transient": ["Declined"], "user": ["Exception"]}
        assert self.class_of(Declined("no"), policy) == "transient"
        assert self.class_of(ValueError("no"), policy) == "permanent"
        assert self.class_of(KeyError("no"), policy) == "user"

    def test_what_the_worker_calls_permanent_may_be_transient(self) -> None:
        from scheduler_project.sdk.outcomes import PermanentError

        assert self.class_of(PermanentError("no"), {"transient": ["PermanentError"]}) == "transient"

    @pytest.mark.parametrize(
        ("error", "names", "found"),
        [
            ("HTTP 404", ["HTTP 404"], "user"),
            ("HTTP 404", ["HTTP 4xx"], "user"),
            ("HTTP 404", ["HTTP 5xx"], "transient"),
            ("exit 3", ["exit 3"], "user"),
            ("exit 3", ["exit 30"], "transient"),
        ],
    )
    def test_statuses_and_exit_codes_are_named_too(self, error: str, names: list[str], found: str) -> None:
        outcome = stated_failure("transient", error, "line", AT, AT)
        assert classified(outcome, {"user": names}).error_class == found

    def test_a_status_goes_before_its_family(self) -> None:
        outcome = stated_failure("transient", "HTTP 503", "line", AT, AT)
        policy = {"permanent": ["HTTP 5xx"], "transient": ["HTTP 503"]}
        assert classified(outcome, policy).error_class == "transient"

    def test_a_time_out_may_be_final(self) -> None:
        outcome = stated_failure("timeout", "TimeLimitReached", "line", AT, AT)
        assert classified(outcome, {"permanent": ["TimeLimitReached"]}).error_class == "permanent"

    @pytest.mark.parametrize(
        ("error_class", "name"), [("worker_lost", "WorkerLost"), ("cancelled", "RunCancelled")]
    )
    def test_a_loss_and_a_cancel_are_what_they_are(self, error_class: str, name: str) -> None:
        outcome = stated_failure(error_class, name, "line", AT, AT)
        assert classified(outcome, {"transient": [name], "user": [name]}) == outcome

    def test_success_is_left_alone(self) -> None:
        outcome = Outcome(SUCCEEDED, AT, AT)
        assert classified(outcome, {"permanent": ["Exception"]}) is outcome

    @staticmethod
    def class_of(error: BaseException, policy: dict[str, Any]) -> str | None:
        return classified(failure(error, AT, AT), policy).error_class
