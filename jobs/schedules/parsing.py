"""Read a schedule as the API spells it, and refuse what is not known."""

import json
import re
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from jobs.schedules.calendars.business_hours import WorkingTime
from jobs.schedules.calendars.schedule import EXCLUDE, ON_CLOSED, OnCalendar
from jobs.schedules.cron.expression import compile_expression
from scheduler_project.sdk.declarations.durations import seconds_of

from .errors import BadSchedule
from .kinds import EPOCH, Cron, Interval, Once, OnDemand, Schedule
from .zones import UTC, first_instant

BOUNDS = ("begins_at", "ends_at")
KEYS = {
    "cron": {"timezone", *BOUNDS, "calendar", "jitter"},
    "every": {*BOUNDS, "calendar", "jitter"},
    "at": {"timezone", "calendar", "jitter"},
}
KNOWN_KEYS = ("cron", "timezone", "every", "at", *BOUNDS, "calendar", "jitter")
# What others call them.
OTHER_WORDS = {
    **{"interval": "every", "period": "every", "expression": "cron", "crontab": "cron"},
    **{"run_at": "at", "once": "at", "tz": "timezone", "zone": "timezone"},
    **{"start": "begins_at", "end": "ends_at", "start_time": "begins_at", "expires": "ends_at"},
}
KINDS_HINT = 'one of {"cron": "*/5 * * * *"}, {"every": "PT30S"}, {"at": "2026-11-18T12:00:00Z"}, or null'
MAX_EVERY = timedelta(days=3650)
EVERY_HINT = (
    "seconds, or an ISO 8601 duration such as PT30S, PT1H30M or P1D; from 1 second to 10 years (3650 days)"
)
MAX_JITTER = timedelta(days=1)
JITTER_HINT = "seconds, or an ISO 8601 duration such as PT5M; up to a day (P1D)"
CALENDAR_HINT = '{"name": "us-holidays", "on_closed": "exclude"}; on_closed is exclude, next or previous'
INSTANT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,40}))?)?"
    r"(?:([Zz])|([+-])([0-9]{2}):([0-9]{2}))?"
)
INSTANT_HINT = (
    "an ISO 8601 instant with its offset, such as 2026-11-18T12:00:00Z or 2026-11-18T13:00:00+01:00"
)

LOCAL_HINT = "a local time such as 2026-12-24T18:00 beside the timezone, or an instant with its offset alone"


def parse(spec: object, hash_id: str = "", calendar: WorkingTime | None = None) -> Schedule:
    """Read a schedule, or raise BadSchedule.

    `hash_id` decides what H means in a cron expression. `calendar` is the working time of the calendar that the
    schedule names, if it names one.
    """
    if spec is None:
        return OnDemand()
    if not isinstance(spec, dict):
        raise BadSchedule("schedule", f"{kind_of(spec)} is not a schedule", KINDS_HINT)
    for key in spec:
        if key not in KNOWN_KEYS:
            near = [OTHER_WORDS[key]] if key in OTHER_WORDS else get_close_matches(str(key), KNOWN_KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN_KEYS)}"
            raise BadSchedule(f"schedule.{str(key)[:50]}", f"{str(key)[:50]} is not known", hint)
    given = {key: value for key, value in spec.items() if value is not None}
    kind = _only_kind(given)
    schedule = _plain(kind, given, hash_id)
    return _on_calendar(schedule, given["calendar"], calendar) if "calendar" in given else schedule


def calendar_name(spec: object) -> str | None:
    """Return the name of the calendar that a schedule uses, or None."""
    named = spec.get("calendar") if isinstance(spec, dict) else None
    return None if named is None else _calendar_use(named)[0]


def _plain(kind: str, given: dict[str, object], hash_id: str) -> Schedule:
    jitter, (begins_at, ends_at) = _jitter(given.get("jitter", 0)), _bounds(given)
    if kind == "at":
        return replace(_once(given), jitter=jitter)
    if kind == "every":
        return Interval(every=_every(given["every"]), begins_at=begins_at, ends_at=ends_at, jitter=jitter)
    return replace(_cron(given, hash_id), begins_at=begins_at, ends_at=ends_at, jitter=jitter)


def _on_calendar(schedule: Schedule, value: object, working: WorkingTime | None) -> OnCalendar:
    name, on_closed = _calendar_use(value)
    if isinstance(schedule, Interval) and on_closed != EXCLUDE:
        detail = f"an interval has no time on the clock that {on_closed} could keep"
        raise BadSchedule("schedule.calendar.on_closed", detail, f"{EXCLUDE}, or a cron schedule")
    if working is None:
        # Without it, closed times would be planned.
        raise BadSchedule("schedule.calendar.name", f"the calendar {name} is not at hand", CALENDAR_HINT)
    return OnCalendar(
        base=schedule,
        calendar=name,
        on_closed=on_closed,
        working=working,
        begins_at=schedule.begins_at,
        ends_at=schedule.ends_at,
        jitter=schedule.jitter,
    )


def _calendar_use(value: object) -> tuple[str, str]:
    if not isinstance(value, dict):
        raise BadSchedule("schedule.calendar", f"{kind_of(value)} does not name a calendar", CALENDAR_HINT)
    for key in value:
        if key not in ("name", "on_closed"):
            shown = str(key)[:50]
            raise BadSchedule(f"schedule.calendar.{shown}", f"{shown} is not known", CALENDAR_HINT)
    name, on_closed = value.get("name"), value.get("on_closed", EXCLUDE)
    if not isinstance(name, str):
        raise BadSchedule("schedule.calendar.name", f"{kind_of(name)} is not a name", CALENDAR_HINT)
    if on_closed not in ON_CLOSED:
        shown = on_closed[:60] if isinstance(on_closed, str) else kind_of(on_closed)
        hint = f"one of {', '.join(ON_CLOSED)}"
        raise BadSchedule("schedule.calendar.on_closed", f"{shown} is not known", hint)
    return name, str(on_closed)


def _only_kind(given: dict[str, object]) -> str:
    """Return the kind of the schedule, and refuse keys of other kinds."""
    kinds = [kind for kind in KEYS if kind in given]
    if not kinds:
        raise BadSchedule("schedule", "none of cron, every and at is given", KINDS_HINT)
    if len(kinds) > 1:
        raise BadSchedule("schedule", f"{' and '.join(kinds)} exclude each other", KINDS_HINT, "inconsistent")
    [kind] = kinds
    for key in given:
        if key != kind and key not in KEYS[kind]:
            goes_with = " and ".join(other for other, keys in KEYS.items() if key in keys)
            detail, hint = f"{key} has no meaning beside {kind}", f"it goes with {goes_with}"
            raise BadSchedule(f"schedule.{key}", detail, hint)
    return kind


def _once(given: dict[str, object]) -> Once:
    """Read an instant, or with a zone a local time: in a gap the end of the gap, in a fold the first, as cron's."""
    at, where = given["at"], "schedule.at"
    if "timezone" not in given:
        return Once(at=read_instant(at, where, f"{INSTANT_HINT}; a local time needs a timezone beside it"))
    zone = read_zone(given["timezone"], "schedule.timezone")
    match = INSTANT.fullmatch(at) if isinstance(at, str) else None
    if not match:
        shown = repr(at[:60]) if isinstance(at, str) else kind_of(at)
        raise BadSchedule(where, f"{shown} is not a local time", LOCAL_HINT)
    *numbers, fraction, zulu, sign, _, _ = match.groups()
    if zulu or sign:
        raise BadSchedule(where, f"{at} has an offset and a timezone beside it", LOCAL_HINT)
    if fraction:
        raise BadSchedule(where, f"{at} has a fraction of a second", LOCAL_HINT)
    try:
        local = datetime(*(int(number or 0) for number in numbers))  # type: ignore[arg-type]  # noqa: DTZ001
        instant = first_instant(zone, local)
    except (ValueError, OverflowError):
        raise BadSchedule(where, f"{at} does not exist", LOCAL_HINT, "no_such_time") from None
    if instant < EPOCH:
        raise BadSchedule(where, f"{at} is before 1970", LOCAL_HINT, "too_early")
    return Once(at=instant, local=local, zone=zone)


def _cron(given: dict[str, object], hash_id: str) -> Cron:
    expression = given["cron"]
    if not isinstance(expression, str):
        detail = f"{kind_of(expression)} is not a cron expression"
        raise BadSchedule("schedule.cron", detail, "a string: */5 * * * *")
    pattern = compile_expression(expression, hash_id)
    zone = read_zone(given.get("timezone", "UTC"), "schedule.timezone")
    return Cron(expression=" ".join(expression.split()), zone=zone, pattern=pattern)


def read_zone(name: object, where: str) -> ZoneInfo:
    if not isinstance(name, str):
        raise BadSchedule(where, f"{kind_of(name)} is not a zone name", "a string: America/New_York")
    if name not in _zone_names():
        raise BadSchedule(where, f"{name[:60]} is not a known time zone", _near_zones(name), "unknown_zone")
    return _loaded_zone(name)


# zoneinfo itself keeps eight, and the memo of planned times compares zones by identity.
_loaded_zone = cache(ZoneInfo)


@cache
def _zone_names() -> frozenset[str]:
    return frozenset(available_timezones() - {"localtime", "posixrules", "Factory"})


def _near_zones(name: str) -> str:
    """Suggest zones, found also by their city alone or in another case."""
    wanted = name[:60].strip().lower().replace(" ", "_")
    spelled = {zone.lower(): zone for zone in sorted(_zone_names())}
    cities = {lower.rpartition("/")[2]: zone for lower, zone in spelled.items() if "/" in lower}
    city = wanted.rpartition("/")[2]
    near = [spelled[wanted]] if wanted in spelled else []
    near += [cities[found] for found in get_close_matches(city, cities, n=2, cutoff=0.8)]
    near += [spelled[found] for found in get_close_matches(wanted, spelled, n=3, cutoff=0.7)]
    if not near:
        return "a name of the IANA time zone database, such as America/New_York or UTC"
    return f"did you mean {' or '.join(list(dict.fromkeys(near))[:3])}?"


def _every(value: object) -> timedelta:
    value = _of_printable_size(value)
    every = _length(value, "schedule.every", "an interval", EVERY_HINT, MAX_EVERY)
    if every < timedelta(seconds=1):
        raise BadSchedule("schedule.every", f"{value} is shorter than 1 second", EVERY_HINT)
    if every > MAX_EVERY:
        raise BadSchedule("schedule.every", f"{value} is longer than 10 years", EVERY_HINT)
    return every


def _jitter(value: object) -> timedelta:
    value = _of_printable_size(value)
    jitter = _length(value, "schedule.jitter", "a length of time", JITTER_HINT, MAX_JITTER)
    if not timedelta(0) <= jitter <= MAX_JITTER:
        raise BadSchedule("schedule.jitter", f"{value} is not from 0 to a day", JITTER_HINT)
    return jitter


def _of_printable_size(value: object) -> object:
    """Bound a number, since an integer may be longer than repr allows."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return max(min(value, 10**12), -(10**12)) if is_number else value  # type: ignore[call-overload]


def _length(value: object, where: str, what: str, hint: str, longest: timedelta) -> timedelta:
    if isinstance(value, str):
        seconds = _duration(value, where, hint)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = Decimal(repr(value))
    else:
        raise BadSchedule(where, f"{kind_of(value)} is not {what}", hint)
    if not seconds.is_finite():
        raise BadSchedule(where, f"{value} is not {what}", hint)
    milliseconds = seconds * 1000
    if milliseconds != milliseconds.to_integral_value():
        raise BadSchedule(where, f"{value} has a fraction of a millisecond", hint, "too_precise")
    too_long = longest + timedelta(days=1)
    return timedelta(milliseconds=min(int(milliseconds), too_long // timedelta(milliseconds=1)))


def _duration(text: str, where: str, hint: str) -> Decimal:
    if re.fullmatch(r"P[0-9]*Y.*|P([0-9]+Y)?[0-9]+M.*", text):
        fixed = "an interval is of fixed length: use days (P30D), or cron for calendar months: 0 0 1 * *"
        raise BadSchedule(where, f"{text[:60]} has years or months", fixed)
    seconds = seconds_of(text)
    if seconds is None:
        raise BadSchedule(where, f"{_quoted(text)} is not a duration", hint)
    return seconds


def _quoted(text: str) -> str:
    return json.dumps(text[:60], ensure_ascii=False)


def _bounds(given: dict[str, object]) -> tuple[datetime | None, datetime | None]:
    begins_at, ends_at = (
        read_instant(given[name], f"schedule.{name}") if name in given else None for name in BOUNDS
    )
    if begins_at is not None and ends_at is not None and ends_at < begins_at:
        detail = f"{given['ends_at']} is before begins_at, {given['begins_at']}"
        raise BadSchedule("schedule.ends_at", detail, "leave out one", "inconsistent")
    return begins_at, ends_at


def read_instant(value: object, where: str, hint: str = INSTANT_HINT) -> datetime:
    if not isinstance(value, str):
        raise BadSchedule(where, f"{kind_of(value)} is not an instant", hint)
    match = INSTANT.fullmatch(value)
    if not match:
        raise BadSchedule(where, f"{_quoted(value)} is not an instant", hint)
    *numbers, fraction, zulu, sign, hours, minutes = match.groups()
    if not zulu and not sign:
        raise BadSchedule(where, f"{value} has no offset, so it is no instant", hint)
    # Most languages write microseconds; the rest of a millisecond is cut off.
    microsecond = int((fraction or "")[:3].ljust(3, "0")) * 1000
    try:
        offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0)) * (-1 if sign == "-" else 1)
        year, month, day, hour, minute, second = (int(number or 0) for number in numbers)
        local = datetime(year, month, day, hour, minute, second, microsecond, timezone(offset))
        instant = local.astimezone(UTC)
    except (ValueError, OverflowError):
        detail = f"{value} does not exist: there is no such day, time or offset"
        raise BadSchedule(where, detail, hint, "no_such_time") from None
    if instant < EPOCH:
        raise BadSchedule(where, f"{value} is before 1970", hint, "too_early")
    return instant


def kind_of(value: object) -> str:
    names = {bool: "a boolean", dict: "an object", list: "a list", str: "a string", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, (int, float)) else type(value).__name__)
