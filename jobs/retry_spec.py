"""Retry policy and circuit breaker of a job as a team writes them down: what becomes of a run that fails."""

import re
from datetime import timedelta

from django.conf import settings

from jobs import durations
from jobs.input_checks import Json, expect_object, listed, refuse_unknown, refused, shown, whole_number
from scheduler_project.sdk.retries import (
    BACKOFFS,
    DEFAULT_RETRY,
    JITTERS,
    MOST_ATTEMPTS,
    NAMED_CLASSES,
    most_losses,
)

LONGEST_DELAY = LONGEST_COOLDOWN = timedelta(days=7)
DEFAULT_COOLDOWN = 300.0
# Of one kind.
MOST_NAMES = 50
ERROR_NAME = re.compile(r"HTTP [1-5](\d\d|xx)|exit -?\d{1,5}|[^\W\d]\w*(\.[^\W\d]\w*)*")


def read_retry(value: object) -> Json:
    given = expect_object(value, "retry")
    refuse_unknown(given, (*DEFAULT_RETRY, "max_losses", *NAMED_CLASSES), "retry")
    merged = {**DEFAULT_RETRY, **given}
    if merged["backoff"] not in BACKOFFS:
        raise refused(
            "retry.backoff", f"{shown(merged['backoff'])} is not a back-off", listed(BACKOFFS, "one of")
        )
    if merged["jitter"] not in JITTERS:
        raise refused("retry.jitter", f"{shown(merged['jitter'])} is not a jitter", listed(JITTERS, "one of"))
    base = durations.read(merged["base"], "retry.base", timedelta(0), LONGEST_DELAY)
    cap = durations.read(merged["cap"], "retry.cap", timedelta(0), LONGEST_DELAY)
    if cap < base and "cap" not in given:
        cap = base
    if cap < base:
        raise refused(
            "retry.cap", "the longest delay is below the first one, base", "raise cap or lower base"
        )
    attempts = whole_number(merged["max_attempts"], "retry.max_attempts", 1, MOST_ATTEMPTS)
    losses = given.get("max_losses")
    if losses is not None:
        losses = whole_number(losses, "retry.max_losses", 1, MOST_ATTEMPTS)
    return {
        "max_attempts": attempts,
        "backoff": merged["backoff"],
        "base": base.total_seconds(),
        "cap": cap.total_seconds(),
        "jitter": merged["jitter"],
        "max_losses": losses or most_losses({"max_attempts": attempts}, settings.MAX_WORKER_LOSSES),
        **_read_error_names(given),
    }


def _read_error_names(retry: Json) -> Json:
    """Which errors are permanent, transient or the user's, whatever the worker takes them for."""
    found: dict[str, list[str]] = {}
    for kind in NAMED_CLASSES:
        field, names = f"retry.{kind}", retry.get(kind) or []
        if not isinstance(names, list) or len(names) > MOST_NAMES:
            raise refused(field, f"{shown(names)} is not a list of errors", f"at most {MOST_NAMES} names")
        for name in names:
            if not isinstance(name, str) or len(name) > 200 or not ERROR_NAME.fullmatch(name):
                hint = "ValueError, payments.errors.CardDeclined, HTTP 404, HTTP 5xx or exit 3"
                raise refused(field, f"{shown(name)} is not the name of an error", hint)
            other = next((other for other, taken in found.items() if name in taken), None)
            if other is not None:
                raise refused(field, f"{shown(name)} is {other} already", "name it once")
        found[kind] = list(dict.fromkeys(names))
    return found


def read_breaker(value: object) -> Json | None:
    if value is None:
        return None
    given = expect_object(value, "breaker")
    refuse_unknown(given, ("failures", "cooldown"), "breaker")
    if "failures" not in given:
        raise refused("breaker.failures", "failures is required", "so many in a row, such as 5", "required")
    cooldown = durations.read(
        given.get("cooldown", DEFAULT_COOLDOWN), "breaker.cooldown", timedelta(seconds=1), LONGEST_COOLDOWN
    )
    return {
        "failures": whole_number(given["failures"], "breaker.failures", 1, 1000),
        "cooldown": cooldown.total_seconds(),
    }
