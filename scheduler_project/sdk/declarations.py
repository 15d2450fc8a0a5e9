"""Jobs that decorators ask for, in the shape of the API's `POST /jobs`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from .retry_options import PolicyWrong, breaker_policy, retry_policy

OVERLAPS = ("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all")
ON_CLOSED = ("exclude", "next", "previous")
CATCH_UPS = ("last", "skip", "all")
HIGHEST_PRIORITY = 1000
# Seconds. A task's own limit is brought within what the platform takes; a job's own `timeout` is refused by the
# platform if it is not.
SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 1.0, 30 * 86_400.0
DURATION = re.compile(r"P(?=.)(\d+W)?(\d+D)?(T(?=.)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?")


class DeclarationWrong(ValueError):
    """A job cannot be declared like this."""


def declaration(
    *,
    task: str,
    name: str | None,
    description: str | None = None,
    cron: str | None,
    every: Any,
    at: datetime | str | None,
    timezone: str | None,
    start: datetime | str | None = None,
    end: datetime | str | None = None,
    calendar: str | None,
    on_closed: str | None,
    jitter: Any,
    priority: int | None,
    retries: int | None,
    timeout: Any,
    overlap: str | None,
    max_concurrency: int | None = None,
    catch_up: str | Mapping[str, Any] | None,
    tags: Mapping[str, str] | None,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    retry: Mapping[str, Any] | None = None,
    breaker: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "name": name or task,
        "target": {
            "kind": "celery",
            "task": task,
            "args": list(args or ()),
            "kwargs": dict(kwargs or {}),
        },
        "description": description,
        "schedule": kept(
            bounded(schedule(cron, every, at, timezone), start, end), calendar, on_closed, jitter
        ),
        "priority": checked_priority(priority),
        "timeout": seconds("timeout", timeout),
        "overlap": checked_overlap(overlap),
        "max_concurrency": checked_concurrency(max_concurrency),
        "catch_up": checked_catch_up(catch_up),
        "tags": dict(tags) if tags is not None else None,
        **policies(retries, retry, breaker),
    }
    # What was not said is the platform's default; a job without a schedule runs on demand.
    return {key: value for key, value in spec.items() if value is not None or key == "schedule"}


def schedule(
    cron: str | None, every: Any, at: datetime | str | None, timezone: str | None
) -> dict[str, Any] | None:
    given = [word for word, value in (("cron", cron), ("every", every), ("at", at)) if value is not None]
    if len(given) > 1:
        raise DeclarationWrong(f"A job has one schedule, not {' and '.join(given)}.")
    if timezone is not None and cron is None:
        raise DeclarationWrong("A timezone belongs to a cron expression.")
    if cron is not None:
        if len(cron.split()) not in (5, 6) and not cron.startswith("@"):
            raise DeclarationWrong(
                f"{cron!r} is no cron expression: it has 5 fields, or 6 with seconds first."
            )
        return {"cron": cron, "timezone": timezone or "UTC"}
    if every is not None:
        return {"every": seconds("every", every)}
    return None if at is None else {"at": instant(at)}


def bounded(
    planned: dict[str, Any] | None, start: datetime | str | None, end: datetime | str | None
) -> dict[str, Any] | None:
    """From `start` on, and not after `end`."""
    bounds = {word: instant(at, word) for word, at in (("start", start), ("end", end)) if at is not None}
    if bounds and (planned is None or "at" in planned):
        raise DeclarationWrong("start and end belong to a schedule that comes again: cron or every.")
    if len(bounds) == 2 and datetime.fromisoformat(bounds["end"]) <= datetime.fromisoformat(bounds["start"]):
        raise DeclarationWrong(f"end={end!s} is not after start={start!s}.")
    return planned if planned is None else {**planned, **bounds}


def kept(
    planned: dict[str, Any] | None, calendar: str | None, on_closed: str | None, jitter: Any
) -> dict[str, Any] | None:
    """With the calendar it keeps to and the window in which its runs begin."""
    if on_closed is not None and calendar is None:
        raise DeclarationWrong(
            "on_closed says what becomes of times that a calendar closes: name the calendar."
        )
    if on_closed is not None and on_closed not in ON_CLOSED:
        raise DeclarationWrong(f"on_closed={on_closed!r} is none of {', '.join(ON_CLOSED)}.")
    more: dict[str, Any] = {}
    if calendar is not None:
        more["calendar"] = {"name": calendar, "on_closed": on_closed or ON_CLOSED[0]}
    if jitter is not None:
        more["jitter"] = seconds("jitter", jitter)
    if more and planned is None:
        raise DeclarationWrong("A calendar and a jitter belong to a schedule: cron, every or at.")
    return planned if planned is None else {**planned, **more}


def seconds(word: str, value: Any) -> float | str | None:
    """A number, a timedelta, or an ISO 8601 duration, which the platform reads."""
    if value is None:
        return None
    if isinstance(value, str):
        if not DURATION.fullmatch(value):
            raise DeclarationWrong(f"{word}={value!r} is no ISO 8601 duration such as PT30S.")
        return value
    number = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if number <= 0:
        raise DeclarationWrong(f"{word}={value!r} is not above zero.")
    return number


def timeout_of_task(task: Any) -> float | None:
    """What a task says of its own limits, the soft one before the hard one. The job's own timeout goes before.

    Celery gives the app's limits to each task that says none; those are not the task's own.
    """
    for word in ("soft_time_limit", "time_limit"):
        limit = getattr(task, word, None)
        if limit is not None and limit != task.app.conf[f"task_{word}"] and limit > 0:
            return min(LONGEST_TIMEOUT, max(SHORTEST_TIMEOUT, float(limit)))
    return None


def instant(value: datetime | str, word: str = "at") -> str:
    try:
        at = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    except ValueError:
        raise DeclarationWrong(f"{word}={value!r} is no instant such as 2027-01-31T12:00:00Z.") from None
    if at.tzinfo is None:
        raise DeclarationWrong(f"{word}={value!s} has no timezone.")
    return at.isoformat()


def checked_priority(value: int | None) -> int | None:
    if value is not None and not 0 <= value <= HIGHEST_PRIORITY:
        raise DeclarationWrong(f"priority={value!r} is not within 0 and {HIGHEST_PRIORITY}.")
    return value


def policies(
    retries: int | None, retry: Mapping[str, Any] | None, breaker: Mapping[str, Any] | None
) -> dict[str, Any]:
    if retries is not None and retries < 0:
        raise DeclarationWrong(f"retries={retries!r} is below zero.")
    try:
        return {
            "retry": retry_policy(retries, retry, seconds),
            "breaker": breaker_policy(breaker, seconds),
        }
    except PolicyWrong as wrong:
        raise DeclarationWrong(str(wrong)) from None


def checked_concurrency(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise DeclarationWrong(f"max_concurrency={value!r} is not above zero.")
    return value


def checked_catch_up(value: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A policy, or a policy with its window, bound and pace, which the platform reads."""
    if value is None:
        return None
    given = {"policy": value} if isinstance(value, str) else dict(value)
    if given.get("policy") not in CATCH_UPS:
        raise DeclarationWrong(f"catch_up={value!r} has none of the policies {', '.join(CATCH_UPS)}.")
    return {word: seconds(word, part) if word == "window" else part for word, part in given.items()}


def checked_overlap(value: str | None) -> str | None:
    if value is not None and value not in OVERLAPS:
        raise DeclarationWrong(f"overlap={value!r} is none of {', '.join(OVERLAPS)}.")
    return value
