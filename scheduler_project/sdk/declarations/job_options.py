"""Options of `@keeper.job(…)`, and the fields of the API's `POST /jobs` that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Any, NamedTuple, TypedDict, get_args, get_origin, get_type_hints

from .checks import InvalidDeclaration, as_json, instant, local_time, one_of, seconds
from .retry_options import read_breaker, read_retry

OVERLAPS = ("skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all")
ON_CLOSED = ("exclude", "next", "previous")
CATCH_UPS = ("last", "skip", "all")
MAX_PRIORITY = 1000
# Earlier words for options.
OTHER_WORDS = {"start": "begins_at", "end": "ends_at"}
TYPE_NAMES: Mapping[type, str] = {Mapping: "dict", Sequence: "list"}


class JobOptions(TypedDict, total=False):
    """Keyword arguments of `@keeper.job`. For one that is left out or None the platform's default applies."""

    description: str | None
    cron: str | None
    every: Any
    at: datetime | str | None
    timezone: str | None
    begins_at: datetime | str | None
    ends_at: datetime | str | None
    calendar: str | None
    on_closed: str | None
    jitter: Any
    priority: int | None
    timeout: Any
    overlap: str | None
    max_concurrency: int | None
    catch_up: str | Mapping[str, Any] | None
    tags: Mapping[str, str] | None
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    retries: int | None
    retry: Mapping[str, Any] | None
    breaker: Mapping[str, Any] | None


def declaration(task: str, name: str | None, options: JobOptions) -> dict[str, Any]:
    """Write the options as a spec. A job without a schedule runs on demand, so that field is always written."""
    given: Mapping[str, Any] = options
    refuse_wrong_types(given)
    args, kwargs = as_json("args", given.get("args") or []), as_json("kwargs", given.get("kwargs") or {})
    target = {"kind": "celery", "task": task, "args": args, "kwargs": kwargs}
    spec: dict[str, Any] = {"name": name or task, "target": target}
    for field, (names, read, _) in FIELDS.items():
        value = as_json(field, read(*map(given.get, names)))
        if value is not None or field == "schedule":
            spec[field] = value
    return spec


def refuse_wrong_types(given: Mapping[str, Any]) -> None:
    for option, value in given.items():
        types = types_of(option)
        text_as_list = isinstance(value, (str, bytes)) and Sequence in types
        if value is not None and types and (text_as_list or not isinstance(value, types)):
            known = " or ".join(TYPE_NAMES.get(one, one.__name__) for one in types)
            raise InvalidDeclaration(f"{option} takes {known}, not {type(value).__name__}.")


@cache
def types_of(option: str) -> tuple[type, ...]:
    """Return the types that an option's annotation allows beside None; none: its reader looks at what it gets."""
    hint = get_type_hints(JobOptions)[option]
    return tuple(get_origin(one) or one for one in get_args(hint) if one is not type(None))


def refuse_unknown_options(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in JobOptions.__annotations__:
            meant = f": did you mean {OTHER_WORDS[name]}?" if name in OTHER_WORDS else ""
            raise TypeError(f"job() got an unexpected keyword argument {name!r}{meant}")


def read_schedule(
    cron: str | None,
    every: Any,
    at: datetime | str | None,
    timezone: str | None,
    begins_at: datetime | str | None,
    ends_at: datetime | str | None,
    calendar: str | None,
    on_closed: str | None,
    jitter: Any,
) -> dict[str, Any] | None:
    planned = _times(cron, every, at, timezone)
    given = {"begins_at": begins_at, "ends_at": ends_at}
    bounds = {option: instant(at, option) for option, at in given.items() if at is not None}
    if bounds and (planned is None or "at" in planned):
        raise InvalidDeclaration(
            "begins_at and ends_at belong to a schedule that comes again: cron or every."
        )
    if len(bounds) == 2:
        first, last = map(datetime.fromisoformat, bounds.values())
        if last <= first:
            raise InvalidDeclaration(f"ends_at={ends_at!s} is not after begins_at={begins_at!s}.")
    if on_closed is not None and calendar is None:
        raise InvalidDeclaration(
            "on_closed says what becomes of times that a calendar closes: name the calendar."
        )
    one_of("on_closed", ON_CLOSED, on_closed)
    if planned is None:
        if calendar is not None or jitter is not None:
            raise InvalidDeclaration("A calendar and a jitter belong to a schedule: cron, every or at.")
        return None
    planned.update(bounds)
    if calendar is not None:
        planned["calendar"] = {"name": calendar, "on_closed": on_closed or ON_CLOSED[0]}
    if jitter is not None:
        planned["jitter"] = seconds("jitter", jitter)
    return planned


def _times(
    cron: str | None, every: Any, at: datetime | str | None, timezone: str | None
) -> dict[str, Any] | None:
    given = [option for option, value in (("cron", cron), ("every", every), ("at", at)) if value is not None]
    if len(given) > 1:
        raise InvalidDeclaration(f"A job has one schedule, not {' and '.join(given)}.")
    if timezone is not None and cron is None and at is None:
        raise InvalidDeclaration("A timezone belongs to cron, or to an at in local time.")
    if cron is not None:
        if len(cron.split()) not in (5, 6) and not cron.startswith("@"):
            raise InvalidDeclaration(
                f"{cron!r} is no cron expression: it has 5 fields, or 6 with seconds first."
            )
        return {"cron": cron, "timezone": timezone or "UTC"}
    if every is not None:
        return {"every": seconds("every", every)}
    if at is None:
        return None
    if timezone is None:
        return {"at": instant(at)}
    return {"at": local_time(at), "timezone": timezone}


def read_priority(value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MAX_PRIORITY:
        raise InvalidDeclaration(f"priority={value!r} is not within 0 and {MAX_PRIORITY}.")
    return value


def read_concurrency(value: int | None) -> int | None:
    if value is not None and value < 1:
        raise InvalidDeclaration(f"max_concurrency={value!r} is not above zero.")
    return value


def read_catch_up(value: str | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Read a policy's name, or a policy with its window, bound and pace, which the platform reads."""
    if value is None:
        return None
    given = {"policy": value} if isinstance(value, str) else dict(value)
    if given.get("policy") not in CATCH_UPS:
        raise InvalidDeclaration(f"catch_up={value!r} has none of the policies {', '.join(CATCH_UPS)}.")
    return {key: seconds(key, part) if key == "window" else part for key, part in given.items()}


class JobField(NamedTuple):
    options: tuple[str, ...]
    read: Callable[..., Any]
    # The platform adds defaults within it.
    filled_up: bool = False


# Every field of a spec but `name` and `target`, with the options that fill it.
FIELDS = {
    "description": JobField(("description",), lambda value: value),
    "schedule": JobField(
        ("cron", "every", "at", "timezone", "begins_at", "ends_at", "calendar", "on_closed", "jitter"),
        read_schedule,
    ),
    "priority": JobField(("priority",), read_priority),
    "timeout": JobField(("timeout",), partial(seconds, "timeout")),
    "overlap": JobField(("overlap",), partial(one_of, "overlap", OVERLAPS)),
    "max_concurrency": JobField(("max_concurrency",), read_concurrency),
    "catch_up": JobField(("catch_up",), read_catch_up, filled_up=True),
    "tags": JobField(("tags",), lambda value: None if value is None else dict(value)),
    "retry": JobField(("retries", "retry"), read_retry, filled_up=True),
    "breaker": JobField(("breaker",), read_breaker, filled_up=True),
}
