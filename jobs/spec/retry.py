"""Read the retry policy of a job: what becomes of an attempt that fails."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings

from jobs.spec.field_types import Field, Input, InputKind
from jobs.validation import durations
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, listed, whole_number
from jobs.validation.schema import duration, number, obj, optional, text
from scheduler_project.sdk.retries import (
    BACKOFFS,
    DEFAULT_RETRY,
    JITTERS,
    MAX_ATTEMPTS,
    NAMED_CLASSES,
    max_losses_of,
)

MAX_DELAY = timedelta(days=7)
# Of one class of errors.
MAX_NAMES = 50
# Unless they are given, they follow from the first delay and from the attempts.
FOLLOWING = ("cap", "max_losses")
ERROR_NAME = re.compile(r"HTTP [1-5](\d\d|xx)|exit -?\d{1,5}|[^\W\d]\w*(\.[^\W\d]\w*)*")


def read_retry(value: object, *_: object) -> Json:
    given = expect_object(value, "retry", (*DEFAULT_RETRY, "max_losses", *NAMED_CLASSES))
    merged = {**DEFAULT_RETRY, **given}
    for name, noun, known in (("backoff", "a back-off", BACKOFFS), ("jitter", "a jitter", JITTERS)):
        if merged[name] not in known:
            detail = f"{abbreviate(merged[name])} is not {noun}"
            raise invalid(f"retry.{name}", detail, listed(known, "one of"))
    base = durations.read(merged["base"], "retry.base", timedelta(0), MAX_DELAY)
    cap = durations.read(merged["cap"], "retry.cap", timedelta(0), MAX_DELAY)
    if cap < base and "cap" in given:
        detail = "the longest delay is below the first one, base"
        raise invalid("retry.cap", detail, "raise cap or lower base", "inconsistent")
    attempts = whole_number(merged["max_attempts"], "retry.max_attempts", 1, MAX_ATTEMPTS)
    losses = given.get("max_losses")
    if losses is not None:
        losses = whole_number(losses, "retry.max_losses", 1, MAX_ATTEMPTS)
    return {
        "max_attempts": attempts,
        "backoff": merged["backoff"],
        "base": base.total_seconds(),
        "cap": max(base, cap).total_seconds(),
        "jitter": merged["jitter"],
        "max_losses": losses or max_losses_of({"max_attempts": attempts}, settings.MAX_WORKER_LOSSES),
        **_read_error_names(given),
    }


def _read_error_names(retry: Json) -> Json:
    """Read which errors the job classes itself, whatever class the worker gives them."""
    found: dict[str, list[str]] = {}
    for kind in NAMED_CLASSES:
        field, names = f"retry.{kind}", [] if retry.get(kind) is None else retry[kind]
        if not isinstance(names, list | tuple) or len(names) > MAX_NAMES:
            raise invalid(field, f"{abbreviate(names)} is not a list of errors", f"at most {MAX_NAMES} names")
        for name in names:
            if not isinstance(name, str) or len(name) > 200 or not ERROR_NAME.fullmatch(name):
                hint = "ValueError, payments.errors.CardDeclined, HTTP 404, HTTP 5xx or exit 3"
                raise invalid(field, f"{abbreviate(name)} is not the name of an error", hint)
            other = next((other for other, taken in found.items() if name in taken), None)
            if other is not None:
                taken_twice = f"{abbreviate(name)} is {other} already"
                raise invalid(field, taken_twice, "name it once", "inconsistent")
        found[kind] = list(dict.fromkeys(names))
    return found


def _as_json(stored: Mapping[str, Any]) -> Json:
    return durations.with_texts(stored, "base", "cap")


def _as_given(present: Json, _patch: Json) -> Json:
    """Drop what only follows from the rest, so that it follows the patch: longest delay, number of losses."""
    whole = read_retry(present)
    rests = {one: {name: part for name, part in present.items() if name != one} for one in FOLLOWING}
    following = [one for one, rest in rests.items() if read_retry(rest) == whole]
    return {name: part for name, part in present.items() if name not in following}


ERROR_NAMES = {
    "type": "array",
    "items": text(maxLength=200, pattern=f"^({ERROR_NAME.pattern})$", example="ValueError"),
    "maxItems": MAX_NAMES,
    "description": "ValueError, payments.errors.CardDeclined, HTTP 404, HTTP 5xx, exit 3: what the worker names so, or "
    "a class derived from it. The most specific name wins.",
}
RETRY = Field(
    name="retry",
    read=read_retry,
    default={},
    as_json=_as_json,
    merges_into=_as_given,
    schema=obj(
        {
            "max_attempts": number(minimum=1, maximum=MAX_ATTEMPTS, default=DEFAULT_RETRY["max_attempts"]),
            "backoff": text(enum=list(BACKOFFS), default=DEFAULT_RETRY["backoff"]),
            "base": duration("The first delay.", timedelta(0), MAX_DELAY, default="PT10S"),
            "cap": duration("The longest delay.", timedelta(0), MAX_DELAY, default="PT1H"),
            "jitter": text(
                "Full: a random delay up to the back-off; none: the back-off itself.",
                enum=list(JITTERS),
                default=DEFAULT_RETRY["jitter"],
            ),
            "max_losses": optional(
                number(
                    "After so many lost workers the run is dead; they take nothing from its attempts. Unless given: "
                    "the platform's number, or 1 of a job with one attempt.",
                    minimum=1,
                    maximum=MAX_ATTEMPTS,
                )
            ),
            **dict.fromkeys(NAMED_CLASSES, optional(ERROR_NAMES)),
        },
        title="RetryPolicy",
        description="What becomes of a failed attempt. A delay that the target asks for goes before the back-off.",
    ),
    inputs=(
        Input("retry_max_attempts", InputKind.NUMBER, label="Attempts"),
        Input(
            "retry_backoff",
            InputKind.CHOICE,
            label="Back-off",
            choices=[(one, one) for one in BACKOFFS],
            beside="retry_max_attempts",
        ),
        Input("retry_base", InputKind.DURATION, label="First delay"),
        Input("retry_cap", InputKind.DURATION, label="Longest delay", beside="retry_base"),
        Input(
            "retry_jitter",
            InputKind.CHOICE,
            "Full: a random delay up to that, so that runs that failed together do not retry together.",
            choices=[(one, one) for one in JITTERS],
        ),
        Input(
            "retry_max_losses",
            InputKind.NUMBER,
            "After this many lost workers the run is dead; they do not count as attempts. "
            "Empty: the platform's default.",
            "Lost workers",
            beside="retry_jitter",
        ),
        Input("retry_permanent", InputKind.NAMES, "Never tried again.", "Permanent errors"),
        Input("retry_transient", InputKind.NAMES, "Always tried again.", "Transient errors"),
        Input(
            "retry_user", InputKind.NAMES, "Errors in the input of a run; never tried again.", "User errors"
        ),
    ),
    # The number of losses follows from the attempts unless somebody gives it.
    suggested={**_as_json(DEFAULT_RETRY), "max_losses": None, **dict.fromkeys(NAMED_CLASSES, ())},
    options=("retry", "retries"),
)
