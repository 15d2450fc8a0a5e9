"""Read retry policies and breakers as decorators write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..retries import BACKOFFS, JITTERS, NAMED_CLASSES
from .checks import InvalidDeclaration, refuse_unknown, seconds

RETRY_KEYS = ("max_attempts", "backoff", "base", "cap", "jitter", "max_losses", *NAMED_CLASSES)
BREAKER_KEYS = ("failures", "cooldown")


def read_retry(retries: int | None, retry: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Read the policy; `retries=5` is short for `retry={"max_attempts": 6}`, and None is the platform's default."""
    if retries is not None and retries < 0:
        raise InvalidDeclaration(f"retries={retries!r} is below zero.")
    if retry is None:
        return None if retries is None else {"max_attempts": retries + 1}
    if retries is not None:
        raise InvalidDeclaration(
            'Say retries=… or retry={"max_attempts": …}, not both: the first try is an attempt too.'
        )
    refuse_unknown("retry", retry, RETRY_KEYS)
    for key, known in (("backoff", BACKOFFS), ("jitter", JITTERS)):
        if key in retry and retry[key] not in known:
            raise InvalidDeclaration(f"retry[{key!r}]={retry[key]!r} is none of {', '.join(known)}.")
    policy = dict(retry)
    for key in ("base", "cap"):
        if policy.get(key, 0) != 0:
            policy[key] = seconds(key, policy[key])
    for key in NAMED_CLASSES:
        if key in policy:
            if not isinstance(policy[key], (list, tuple, set, frozenset)):
                raise InvalidDeclaration(f"retry[{key!r}]={policy[key]!r} is no list of exceptions or names.")
            policy[key] = [name_of(error) for error in policy[key]]
    return policy


def name_of(error: Any) -> str:
    """Name an exception class as retry policies do; anything else is a name already."""
    if isinstance(error, type) and issubclass(error, BaseException):
        built_in = error.__module__ == "builtins"
        return error.__name__ if built_in else f"{error.__module__}.{error.__qualname__}"
    return str(error)


def read_breaker(breaker: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if breaker is None:
        return None
    refuse_unknown("breaker", breaker, BREAKER_KEYS)
    if "failures" not in breaker:
        raise InvalidDeclaration("breaker needs failures: after so many in a row the job's runs are held.")
    return {key: seconds(key, value) if key == "cooldown" else value for key, value in breaker.items()}
