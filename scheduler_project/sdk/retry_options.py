"""Retry policies as decorators write them, and as an existing task says them by Celery's own options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery.app.task import Task

from .retries import BACKOFFS, JITTERS, MOST_ATTEMPTS, NAMED_CLASSES

RETRY_WORDS = ("max_attempts", "backoff", "base", "cap", "jitter", "max_losses", *NAMED_CLASSES)
LENGTHS = ("base", "cap")
BREAKER_WORDS = ("failures", "cooldown")


class PolicyWrong(ValueError):
    """A job cannot have such a policy."""


# Reads a length of time, for the field of that name.
Seconds = Callable[[str, Any], Any]


def retry_policy(
    retries: int | None, retry: Mapping[str, Any] | None, seconds: Seconds
) -> dict[str, Any] | None:
    """`retries=5` is short for `retry={"max_attempts": 6}`. None: nothing was said."""
    if retry is None:
        return None if retries is None else {"max_attempts": retries + 1}
    if retries is not None:
        raise PolicyWrong(
            'Say retries=… or retry={"max_attempts": …}, not both: the first try is an attempt too.'
        )
    refuse_unknown("retry", retry, RETRY_WORDS)
    for word, known in (("backoff", BACKOFFS), ("jitter", JITTERS)):
        if word in retry and retry[word] not in known:
            raise PolicyWrong(f"retry[{word!r}]={retry[word]!r} is none of {', '.join(known)}.")
    policy = dict(retry)
    for word in LENGTHS:
        if word in policy:
            policy[word] = policy[word] if policy[word] == 0 else seconds(word, policy[word])
    for kind in NAMED_CLASSES:
        if kind in policy:
            policy[kind] = [name_of(error) for error in policy[kind]]
    return policy


def name_of(error: Any) -> str:
    """An exception class may be given itself."""
    if isinstance(error, type) and issubclass(error, BaseException):
        return (
            error.__name__ if error.__module__ == "builtins" else f"{error.__module__}.{error.__qualname__}"
        )
    return str(error)


def breaker_policy(breaker: Mapping[str, Any] | None, seconds: Seconds) -> dict[str, Any] | None:
    if breaker is None:
        return None
    refuse_unknown("breaker", breaker, BREAKER_WORDS)
    if "failures" not in breaker:
        raise PolicyWrong("breaker needs failures: after so many in a row the job's runs are held.")
    return {word: seconds(word, value) if word == "cooldown" else value for word, value in breaker.items()}


def refuse_unknown(name: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = [word for word in given if word not in known]
    if unknown:
        raise PolicyWrong(f"{name}[{unknown[0]!r}] is not known; {', '.join(known)} are.")


def policy_of_task(task: Any) -> dict[str, Any] | None:
    """What a task says of its retries where it differs from Celery's defaults. The job's own policy goes before."""
    policy: dict[str, Any] = {}
    options: Mapping[str, Any] = getattr(task, "retry_kwargs", None) or {}
    most = options.get("max_retries", task.max_retries)
    if most != Task.max_retries:
        policy["max_attempts"] = MOST_ATTEMPTS if most is None else min(MOST_ATTEMPTS, max(1, int(most) + 1))
    if getattr(task, "autoretry_for", ()) and (factor := float(getattr(task, "retry_backoff", 0) or 0)):
        policy["base"] = max(1.0, factor)
        policy["cap"] = max(policy["base"], float(getattr(task, "retry_backoff_max", 600)))
        policy["jitter"] = "full" if getattr(task, "retry_jitter", True) else "none"
    return policy or None
