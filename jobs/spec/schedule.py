"""Read the schedule of a job, and describe it."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta

from jobs.errors import InvalidInput
from jobs.models import Calendar, Tenant
from jobs.schedules import (
    ALWAYS_OPEN,
    OnCalendar,
    Once,
    Schedule,
    calendar_name,
    describe,
    next_after,
    parse,
)
from jobs.schedules.calendars.schedule import EXCLUDE, NEXT, ON_CLOSED, PREVIOUS
from jobs.schedules.cron.cross_check import log_disagreement
from jobs.schedules.parsing import MAX_EVERY, MAX_JITTER
from jobs.spec.calendar_lookup import held_calendar, working_time
from jobs.spec.field_types import Field, Input, InputKind, Origin
from jobs.validation import durations
from jobs.validation.checks import Json, invalid
from jobs.validation.instants import as_text
from jobs.validation.schema import INSTANT, Schema, duration, obj, optional, ref, text

KINDS = ("cron", "every", "at")
WITH_OFFSET = re.compile(r"([Zz]|[+-]\d\d:\d\d)\s*$")


def read_named(
    tenant: Tenant, value: object, hash_id: str, find: Callable[[Tenant, str], Calendar] = held_calendar
) -> tuple[Schedule, Calendar | None]:
    """Read a schedule and find the calendar it names, locked against edits until the transaction ends."""
    name = calendar_name(value)
    calendar = None if name is None else find(tenant, name)
    return parse(value, hash_id, working_time(calendar)), calendar


def describe_schedule(schedule_json: Json | None, hash_id: str) -> str:
    """Describe a schedule; it names its calendar without reading it."""
    return describe(parse(schedule_json, hash_id, ALWAYS_OPEN))


def first_time(
    schedule_json: Json | None, hash_id: str, now: datetime, calendar: Calendar | None
) -> datetime | None:
    """Find the first planned time after now, from when it counts; refuse a schedule that has none."""
    schedule = parse(schedule_json, hash_id, working_time(calendar))
    found = next_after(schedule, now, anchor=now)
    if found is None and schedule_json is not None:
        raise _without_time(schedule, schedule_json, now)
    log_disagreement(schedule)
    return found


def _without_time(schedule: Schedule, schedule_json: Json, now: datetime) -> InvalidInput:
    plain = schedule.base if isinstance(schedule, OnCalendar) else schedule
    if isinstance(schedule, OnCalendar) and next_after(plain, now, anchor=now) is not None:
        detail = f"no time of the schedule is open in {schedule.calendar}"
        hint = "other times, another calendar, or on_closed: next or previous moves them to another day"
        return invalid("schedule.calendar", detail, hint, "never_open")
    since = f"it is now {as_text(now)}"
    if isinstance(plain, Once):
        return invalid("schedule.at", f"{schedule_json['at']} is in the past", since, "past")
    field = "schedule.ends_at" if schedule.ends_at else "schedule"
    return invalid(field, "the schedule has no time left", since, "past")


def _read(value: object, origin: Origin) -> tuple[Json | None, Calendar | None]:
    schedule, calendar = read_named(origin.tenant, value, origin.job_id)
    return schedule.as_json(), calendar


def _as_json(stored: Json | None) -> Json | None:
    return stored and durations.with_texts(stored, "every", "jitter")


def _of_same_kind(present: Json, patch: Json) -> Json:
    """Drop all of a schedule that the patch replaces by one of another kind."""
    kinds = [kind for kind in KINDS if patch.get(kind) is not None]
    if kinds and not any(kind in present for kind in kinds):
        return {}
    at = patch.get("at")
    # An instant with its offset takes the place of a local time and its zone.
    is_instant = isinstance(at, str) and WITH_OFFSET.search(at)
    return {name: part for name, part in present.items() if name != "timezone"} if is_instant else present


def _split(value: Json | None) -> Json:
    found = value or {}
    kind = next((kind for kind in KINDS if kind in found), "none")
    named = found.get("calendar", {})
    calendar = {"calendar": named.get("name", ""), "on_closed": named.get("on_closed", EXCLUDE)}
    return {"timezone": "UTC", **found, "kind": kind, **calendar}


def _join(parts: Json) -> Json | None:
    """Take only what belongs to the chosen kind: the inputs of the others are hidden, whatever they hold."""
    kind = parts["kind"]
    if kind == "none":
        return None
    kept: Json = {"jitter": parts["jitter"]} if parts["jitter"] else {}
    if parts["calendar"]:
        kept["calendar"] = {"name": parts["calendar"], "on_closed": parts["on_closed"]}
    if kind == "at":
        local = {} if WITH_OFFSET.search(parts["at"]) else {"timezone": parts["timezone"] or "UTC"}
        return {"at": parts["at"], **local, **kept}
    bounds = {name: parts[name] for name in ("begins_at", "ends_at") if parts[name]}
    zone = {"timezone": parts["timezone"] or "UTC"} if kind == "cron" else {}
    return {kind: parts[kind], **zone, **bounds, **kept}


def _calendar(title: str, about: str, *on_closed: str) -> Schema:
    properties = {
        "name": text("Of a calendar of yours."),
        "on_closed": text(about, enum=list(on_closed), default=EXCLUDE),
    }
    return obj(properties, required=("name",), title=title)


def _variant(title: str, kind: str, what: Schema, calendar: Schema, **more: Schema) -> Schema:
    """Describe a kind of schedule. Null stands for what is left out."""
    optionals = {**more, "calendar": calendar, "jitter": JITTER}
    properties = {kind: what, **{name: optional(schema) for name, schema in optionals.items()}}
    lacking = [name for name in optionals if name != "timezone"]
    return obj(properties, required=(kind,), may_lack=lacking, title=title)


BOUNDS = {"begins_at": INSTANT, "ends_at": INSTANT}
JITTER = duration(
    "The flexible window: each run begins so much after its planned time at most, and before the next one. By how much "
    "follows from the job and the planned time.",
    timedelta(0),
    MAX_JITTER,
)
CALENDAR = _calendar(
    "ScheduleCalendar",
    "`exclude`: a closed time is left out. `next`, `previous`: it is moved, at the same time on the clock, to the next "
    "(previous) day on which that is open; what falls together is one.",
    *ON_CLOSED,
)
LOCAL_TIME = obj(
    {
        "at": text(
            "A local time. One that the clock leaves out is the instant at which it goes on; one that it shows twice "
            "is the first.",
            format="local-date-time",
            pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}(:[0-9]{2})?$",
            example="2027-12-24T18:00",
        ),
        "timezone": text("Of the IANA database.", format="iana-time-zone", example="Europe/Berlin"),
        "calendar": optional(CALENDAR),
        "jitter": optional(JITTER),
    },
    required=("at", "timezone"),
    may_lack=("calendar", "jitter"),
    title="LocalTimeSchedule",
)
SCHEMA = {
    "oneOf": [
        _variant(
            "CronSchedule",
            "cron",
            text(
                "Five fields, or six with seconds first; names, L, #, H, @daily.",
                format="cron",
                example="*/5 * * * *",
            ),
            CALENDAR,
            timezone=text("Of the IANA database.", format="iana-time-zone", default="UTC"),
            **BOUNDS,
        ),
        _variant(
            "IntervalSchedule",
            "every",
            duration("", timedelta(seconds=1), MAX_EVERY),
            _calendar("IntervalCalendar", "A closed time is left out.", EXCLUDE),
            **BOUNDS,
        ),
        _variant("OneTimeSchedule", "at", INSTANT, CALENDAR),
        LOCAL_TIME,
    ],
    "nullable": True,
    "description": "Null: only on demand.",
}
CRON, EVERY, AT = (f"schedule_kind == '{kind}'" for kind in ("cron", "every", "at"))
BOUNDED = f"{CRON} || {EVERY}"
ANY = "schedule_kind != 'none'"
SCHEDULE = Field(
    name="schedule",
    read=_read,
    columns=("schedule", "calendar"),
    as_json=_as_json,
    merges_into=_of_same_kind,
    schema=ref("Schedule"),
    section="Schedule",
    inputs=(
        Input(
            "schedule_kind",
            InputKind.CHOICE,
            label="Runs by",
            choices=[
                ("cron", "Cron expression"),
                ("every", "Fixed interval"),
                ("at", "Once, at an instant"),
                ("none", "On demand only"),
            ],
        ),
        Input(
            "cron",
            help="Five fields, or six with seconds first; names, L, #, H and @daily are understood.",
            placeholder="*/5 * * * *",
            only_when=CRON,
        ),
        Input(
            "timezone",
            help="A name of the IANA database; beside an instant with an offset it counts for nothing.",
            placeholder="America/New_York",
            only_when=f"{CRON} || {AT}",
            beside="cron",
        ),
        Input("every", InputKind.DURATION, placeholder="PT30S", only_when=EVERY),
        Input("at", InputKind.INSTANT, "Without an offset: of the time zone.", only_when=AT),
        Input("begins_at", InputKind.INSTANT, "No planned time before.", "Not before", only_when=BOUNDED),
        Input(
            "ends_at",
            InputKind.INSTANT,
            "No planned time after.",
            "Not after",
            only_when=BOUNDED,
            beside="begins_at",
        ),
        Input(
            "calendar",
            help="Name of one of the tenant's calendars; empty: every day is open.",
            only_when=ANY,
        ),
        Input(
            "on_closed",
            InputKind.CHOICE,
            label="When it is closed",
            choices=[
                (EXCLUDE, "that time is left out"),
                (NEXT, "it is moved to the next open day"),
                (PREVIOUS, "it is moved to the previous open day"),
            ],
            only_when=ANY,
            beside="calendar",
        ),
        Input(
            "jitter",
            InputKind.DURATION,
            "The longest delay of a run after its planned time; empty: none.",
            "Flexible window",
            only_when=ANY,
        ),
    ),
    split_value=_split,
    join_parts=_join,
    suggested={"cron": ""},
    options=("cron", "every", "at", "timezone", "begins_at", "ends_at", "calendar", "on_closed", "jitter"),
)
