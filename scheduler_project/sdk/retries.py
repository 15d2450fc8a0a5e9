"""Decide from an outcome and the number of tries what happens next.

An attempt whose worker was lost says nothing about the run: it has a cap of its own (`max_losses`) and takes nothing
from `max_attempts`. What a policy lists as permanent, transient or user decides how a failure counts, by the name of
the exception or of one of its bases, by HTTP status or by exit code; the most specific name wins.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .outcomes import PERMANENT, TIMEOUT, TRANSIENT, USER, WORKER_LOST, Outcome

SUCCEEDED = "succeeded"
DEAD = "dead"
DELAYED = "delayed"
WAITING_CALLBACK = "waiting_callback"

BACKOFFS = ("exponential", "linear", "fixed", "immediate")
JITTERS = ("full", "none")
DEFAULT_RETRY: Mapping[str, Any] = {
    "max_attempts": 4,
    "backoff": "exponential",
    "base": 10.0,
    "cap": 3600.0,
    "jitter": "full",
}
DEFAULT_MAX_LOSSES = 3
MAX_ATTEMPTS = 100
# Classes that a policy lists errors under; the first counts where one is listed twice.
NAMED_CLASSES = (PERMANENT, USER, TRANSIENT)
RETRIED = (TRANSIENT, TIMEOUT, WORKER_LOST)
# A policy may reclassify these; a cancelled run is cancelled, and a lost worker is no error of the run.
CLASSIFIED = (TRANSIENT, PERMANENT, USER, TIMEOUT)
# A target may request more than the policy's cap, but a header from outside must not delay a run for years.
MAX_REQUESTED_DELAY = 7 * 86_400.0


@dataclass(frozen=True)
class Verdict:
    state: str
    delay: float = 0.0


def verdict_on(
    outcome: Outcome,
    attempt: int,
    retry: Mapping[str, Any] | None,
    uniform: Callable[[float, float], float] = random.uniform,
    *,
    losses: int = 0,
) -> Verdict:
    """Decide the run's next state; `losses` of the attempts before this one ended with their worker."""
    if outcome.awaited:
        return Verdict(WAITING_CALLBACK, outcome.callback_timeout)
    if outcome.succeeded:
        return Verdict(SUCCEEDED)
    policy = {**DEFAULT_RETRY, **(retry or {})}
    if outcome.error_class == WORKER_LOST:
        if losses + 1 >= max_losses_of(policy):
            return Verdict(DEAD)
        return Verdict(DELAYED, spread(losses + 1, policy, uniform))
    tries = attempt - losses
    if outcome.error_class not in RETRIED or tries >= int(policy["max_attempts"]):
        return Verdict(DEAD)
    if outcome.retry_after is not None and math.isfinite(outcome.retry_after):
        return Verdict(DELAYED, min(max(outcome.retry_after, 0.0), MAX_REQUESTED_DELAY))
    return Verdict(DELAYED, spread(tries, policy, uniform))


def max_losses_of(policy: Mapping[str, Any], default: int = DEFAULT_MAX_LOSSES) -> int:
    """Return the cap on lost attempts: a policy with one attempt and no cap must not begin the run twice."""
    return int(policy.get("max_losses") or (1 if policy.get("max_attempts") == 1 else default))


def spread(tries: int, policy: Mapping[str, Any], uniform: Callable[[float, float], float]) -> float:
    """Draw the delay after so many tries. With jitter, runs that failed together do not come back together."""
    longest = max_delay(tries, policy)
    return longest if policy["jitter"] == "none" else uniform(0.0, longest)


def max_delay(tries: int, policy: Mapping[str, Any]) -> float:
    base, cap = float(policy["base"]), float(policy["cap"])
    if policy["backoff"] == "immediate":
        return 0.0
    if policy["backoff"] == "fixed":
        return min(cap, base)
    if policy["backoff"] == "linear":
        return min(cap, base * tries)
    # Above 2**62 the cap applies anyway; a larger exponent would overflow the float.
    return min(cap, base * 2.0 ** min(tries - 1, 62))


def breaker_failure(outcome: Outcome, state: str | None) -> bool | None:
    """Return whether an ended attempt is a failure for its job's breaker; None: it says nothing about the job.

    Attempts count, not runs: one run that is tried again and again may open the breaker. A wrong input, a cancel or a
    run that was given back says nothing about the next run.
    """
    if state == SUCCEEDED:
        return False
    return True if state in (DEAD, DELAYED) and outcome.error_class in RETRIED else None


def classified(outcome: Outcome, retry: Mapping[str, Any] | None) -> Outcome:
    """Give the outcome the error class under which the policy lists its error."""
    if outcome.error_class not in CLASSIFIED or not retry:
        return outcome
    for name in outcome.names:
        for error_class in NAMED_CLASSES:
            if name in (retry.get(error_class) or ()):
                return replace(outcome, error_class=error_class)
    return outcome
