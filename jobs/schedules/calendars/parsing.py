"""Read a calendar as the API spells it and as it is stored, naming all its mistakes."""

import re
from datetime import date
from itertools import pairwise

from jobs.errors import FieldError, collecting, refuse_any
from jobs.schedules.errors import BadSchedule
from jobs.schedules.parsing import kind_of, read_zone

from .business_hours import DAY_SECONDS, WHOLE_DAY, Span, Spans, WorkingTime

WEEK_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MAX_DATES = 2000
MAX_SPANS = 24
MAX_NAME_LENGTH = 100
YEARS = (1970, 2200)
DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")
DATE_HINT = '"2026-12-25", or {"date": "2026-12-25", "name": "Christmas"}'
WEEKLY_HINT = 'such as {"mon": [["09:00", "12:00"], ["13:00", "17:00"]]}; without any day it is always open'
SPAN_HINT = 'begin and end, such as ["09:00", "17:00"]; the end may be 24:00'


def read_calendar(value: object) -> WorkingTime:
    """Read the working time of {"timezone", "dates", "weekly"}, or name all its mistakes."""
    if not isinstance(value, dict):
        raise BadSchedule("", f"{kind_of(value)} is not a calendar", "an object {…}")
    errors: list[FieldError] = []
    with collecting(errors):
        zone = read_zone(value.get("timezone", "UTC"), "timezone")
    names = _read_dates(value.get("dates", []), errors)
    weekly = _read_weekly(value.get("weekly", {}), errors)
    refuse_any(errors)
    return WorkingTime(zone=zone, closed=frozenset(names), weekly=weekly, names=names)


def calendar_as_json(working: WorkingTime) -> dict[str, object]:
    """Write a calendar as it is stored: dates in order, and the hours of days that have any."""
    dates = [{"date": day.isoformat(), "name": name} for day, name in sorted(working.names.items())]
    weekly = {
        name: [[_clock(begin), _clock(end)] for begin, end in spans]
        for name, spans in zip(WEEK_DAYS, working.weekly, strict=True)
        if spans
    }
    always = all(spans == WHOLE_DAY for spans in working.weekly)
    return {"timezone": working.zone.key, "dates": dates, "weekly": {} if always else weekly}


def _read_dates(value: object, errors: list[FieldError]) -> dict[date, str]:
    if not isinstance(value, list):
        errors.append(FieldError("dates", f"{kind_of(value)} is not a list of dates", DATE_HINT))
        return {}
    if len(value) > MAX_DATES:
        errors.append(FieldError("dates", f"{len(value)} dates are too many", f"at most {MAX_DATES}"))
        return {}
    names: dict[date, str] = {}
    for number, entry in enumerate(value):
        with collecting(errors):
            day, name = _read_date(entry, f"dates[{number}]")
            if day in names:
                raise BadSchedule(
                    f"dates[{number}]", f"{day} is given twice", "leave one out", "inconsistent"
                )
            names[day] = name
    return names


def _read_date(entry: object, where: str) -> tuple[date, str]:
    if isinstance(entry, dict):
        unknown = [str(key)[:50] for key in entry if key not in ("date", "name")]
        if unknown:
            raise BadSchedule(f"{where}.{unknown[0]}", f"{unknown[0]} is not known", DATE_HINT)
        text, name = entry.get("date"), entry.get("name", "")
    else:
        text, name = entry, ""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
        hint = f"a text of at most {MAX_NAME_LENGTH} characters"
        raise BadSchedule(f"{where}.name", "the name is not one", hint)
    match = DATE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        shown = repr(text[:60]) if isinstance(text, str) else kind_of(text)
        raise BadSchedule(where, f"{shown} is not a date", DATE_HINT)
    try:
        day = date(*(int(number) for number in match.groups()))
    except ValueError:
        raise BadSchedule(where, f"{match[0]} does not exist", DATE_HINT) from None
    if not YEARS[0] <= day.year <= YEARS[1]:
        code = "too_early" if day.year < YEARS[0] else "too_far"
        raise BadSchedule(where, f"{day} is out of range", f"years {YEARS[0]} to {YEARS[1]}", code)
    return day, name


def _read_weekly(value: object, errors: list[FieldError]) -> tuple[Spans, ...]:
    always = (WHOLE_DAY,) * len(WEEK_DAYS)
    if not isinstance(value, dict):
        errors.append(FieldError("weekly", f"{kind_of(value)} is not a week", WEEKLY_HINT))
        return always
    for key in value:
        if key not in WEEK_DAYS:
            known = f"the days are {', '.join(WEEK_DAYS)}"
            errors.append(FieldError(f"weekly.{str(key)[:50]}", f"{str(key)[:50]} is not a day", known))
    if not value:
        return always
    weekly = tuple(_read_spans(value.get(name, []), f"weekly.{name}", errors) for name in WEEK_DAYS)
    if not any(weekly) and not errors:
        never = "no day has hours, so it would never be open"
        errors.append(FieldError("weekly", never, WEEKLY_HINT, "inconsistent"))
    return weekly


def _read_spans(value: object, where: str, errors: list[FieldError]) -> Spans:
    if not isinstance(value, list) or len(value) > MAX_SPANS:
        many = f"{len(value)} spans are too many" if isinstance(value, list) else ""
        what = many or f"{kind_of(value)} is not hours"
        errors.append(FieldError(where, what, f"at most {MAX_SPANS} spans, {WEEKLY_HINT}"))
        return ()
    spans: list[Span] = []
    for number, entry in enumerate(value):
        with collecting(errors):
            spans.append(_read_span(entry, f"{where}[{number}]"))
    spans.sort()
    for (_, end), (begin, _) in pairwise(spans):
        if begin < end:
            detail = f"two spans overlap: one ends at {_clock(end)}, another begins at {_clock(begin)}"
            errors.append(FieldError(where, detail, "join them", "inconsistent"))
    return _joined(spans)


def _joined(spans: list[Span]) -> Spans:
    """Join spans that meet: 09:00-12:00 and 12:00-17:00 do not close at noon."""
    joined: list[Span] = []
    for begin, end in spans:
        if joined and joined[-1][1] >= begin:
            begin = joined.pop()[0]
        joined.append((begin, end))
    return tuple(joined)


def _read_span(entry: object, where: str) -> Span:
    if not isinstance(entry, (list, tuple)) or len(entry) != 2:
        raise BadSchedule(where, "this is not a span of hours", SPAN_HINT)
    begin, end = (_read_time(text, where) for text in entry)
    if end <= begin:
        split = f"for a span over midnight write {entry[0]} to 24:00 here, and 00:00 to {entry[1]} on the next day"
        raise BadSchedule(where, f"{entry[1]} is not after {entry[0]}", split, "inconsistent")
    return begin, end


def _read_time(text: object, where: str) -> int:
    match = TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        shown = repr(text[:60]) if isinstance(text, str) else kind_of(text)
        raise BadSchedule(where, f"{shown} is not a time of day", SPAN_HINT)
    return DAY_SECONDS if match[0] == "24:00" else int(match[1]) * 3600 + int(match[2]) * 60


def _clock(second: int) -> str:
    return f"{second // 3600:02}:{second % 3600 // 60:02}"
