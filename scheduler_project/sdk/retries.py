"""Pure: from what came out and how often it was tried to what happens next."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .outcomes import TIMEOUT, TRANSIENT, WORKER_LOST, Outcome

SUCCEEDED = "succeeded"
DEAD = "dead"
DELAYED = "delayed"

DEFAULT_RETRY: Mapping[str, Any] = {"max_attempts": 4, "backoff": "exponential", "base": 10.0, "cap": 3600.0}
RETRIED = (TRANSIENT, TIMEOUT, WORKER_LOST)
# What a target asks for may be longer than our cap, but a header from outside must not park a run for years.
LONGEST_REQUESTED_DELAY = 7 * 86_400.0


@dataclass(frozen=True)
class Verdict:
    state: str
    delay: float = 0.0


def decide(
    outcome: Outcome,
    attempt: int,
    retry: Mapping[str, Any] | None,
    uniform: Callable[[float, float], float] = random.uniform,
) -> Verdict:
    if outcome.succeeded:
        return Verdict(SUCCEEDED)
    policy = {**DEFAULT_RETRY, **(retry or {})}
    if outcome.error_class not in RETRIED or attempt >= int(policy["max_attempts"]):
        return Verdict(DEAD)
    if outcome.retry_after is not None and math.isfinite(outcome.retry_after):
        return Verdict(DELAYED, min(max(outcome.retry_after, 0.0), LONGEST_REQUESTED_DELAY))
    return Verdict(DELAYED, uniform(0.0, longest_delay(attempt, policy)))


def longest_delay(attempt: int, policy: Mapping[str, Any]) -> float:
    base, cap = float(policy["base"]), float(policy["cap"])
    if policy["backoff"] == "fixed":
        return min(cap, base)
    if policy["backoff"] == "linear":
        return min(cap, base * attempt)
    # Above 2**62 the cap has long won; a larger exponent would overflow the float.
    return min(cap, base * 2.0 ** min(attempt - 1, 62))
