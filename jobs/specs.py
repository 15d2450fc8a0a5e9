"""A job as a team writes it down: every field read and checked in one place, all mistakes named at once."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from jobs import durations, known_targets, secret_references, targets
from jobs.catch_up_spec import DEFAULT_CATCH_UP, read_catch_up
from jobs.input_checks import Json, expect_object, listed, near, refused, shown, whole_number
from jobs.instants import as_text
from jobs.models import DEFAULT_PRIORITY, Calendar, Job, JobVersion, Overlap, Pool, Tenant
from jobs.refusals import MOST_ERRORS, FieldError, InvalidInput
from jobs.retry_spec import read_breaker, read_retry
from jobs.schedules import (
    ALWAYS_OPEN,
    BadSchedule,
    OnCalendar,
    Once,
    Schedule,
    WorkingTime,
    calendar_name,
    in_words,
    next_after,
    parse,
)
from jobs.working_times import held_calendar, working_time

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
DEFAULT_TIMEOUT_MS = 3_600_000
LONGEST_TIMEOUT = 30 * DAY
LONGEST_TAG_NAME, LONGEST_TAG_VALUE = 60, 200
OVERLAP_IN_WORDS = {
    Overlap.SKIP: "the new time gets no run",
    Overlap.BUFFER_ONE: "the new run waits; while one waits, further times get none",
    Overlap.BUFFER_ALL: "every run waits its turn",
    Overlap.CANCEL_OTHER: "the earlier run is cancelled, then the new one goes",
    Overlap.TERMINATE_OTHER: "the earlier run is killed at once, then the new one goes",
    Overlap.ALLOW_ALL: "they run side by side",
}

# Of the job itself; a change takes effect at once and leaves version and clock alone.
JOB_FIELDS = ("name", "description", "pool", "priority", "tags")
# Of a version; a change writes the next one.
VERSION_FIELDS = (
    "target",
    "schedule",
    "timeout",
    "overlap",
    "catch_up",
    "retry",
    "breaker",
    "max_concurrency",
    "resources",
)
FIELDS = (*JOB_FIELDS, *VERSION_FIELDS, "depends_on")
READ_ONLY = {
    "status": "use POST …/pause, …/resume or …/cancel",
    "paused_until": "use POST …/pause with `until`",
    **dict.fromkeys(
        (
            "id",
            "missed_so_far",
            "warnings",
            "version",
            "next_run_at",
            "schedule_in_words",
            "estimated_start_at",
            "created_at",
            "updated_at",
        ),
        "leave it out: it is read only",
    ),
}


@dataclass(frozen=True)
class Given:
    """The fields a request gave, read; those it left out are absent."""

    values: Json

    def job_values(self) -> Json:
        return {name: self.values[name] for name in JOB_FIELDS if name in self.values}

    def version_values(self) -> Json:
        """A schedule comes with the calendar it names, or with none."""
        names = {"timeout": "timeout_ms"}
        fields = (*VERSION_FIELDS, "calendar")
        return {names.get(n, n): self.values[n] for n in fields if n in self.values}


def defaults() -> Json:
    return {
        "description": "",
        "priority": DEFAULT_PRIORITY,
        "tags": {},
        "schedule": None,
        "calendar": None,
        "timeout": DEFAULT_TIMEOUT_MS,
        "overlap": Overlap.SKIP.value,
        "catch_up": DEFAULT_CATCH_UP,
        "retry": read_retry({}),
        "breaker": None,
        "max_concurrency": None,
        "resources": {},
    }


def read_new(tenant: Tenant, data: object, job_id: object) -> Given:
    """A whole new spec: `name` and `target` must be given, `pool` is the default pool unless named."""
    given, errors = _read(tenant, data, job_id, required=("name", "target"), extra={"pool": "default"})
    if "pool" in given and "target" in given:
        _collect(errors, lambda: _check_runnable(given["target"], given["pool"], tenant))
    if errors:
        raise InvalidInput(errors)
    return Given({**defaults(), **given})


def read_changes(job: Job, present: JobVersion, data: object) -> Given:
    """Only what shall change. Nested values are replaced whole."""
    given, errors = _read(job.tenant, data, job.id, required=(), extra={})
    if ("pool" in given or "target" in given) and not errors:
        target, pool = given.get("target", present.target), given.get("pool", job.pool)
        same = pool == job.pool and targets.target_key(target) == present.target_key
        check = targets.check_exported if same else partial(_check_runnable, tenant=job.tenant)
        _collect(errors, lambda: check(target, pool))
    if errors:
        raise InvalidInput(errors)
    return Given(given)


def _check_runnable(target: Json, pool: Pool, tenant: Tenant) -> None:
    """By the pool's permission, then by what its workers know."""
    targets.check_exported(target, pool)
    known_targets.check_known(target, pool, tenant)


def read_schedule(value: object, hash_id: str, calendar: WorkingTime | None = None) -> Schedule:
    try:
        return parse(value, hash_id=hash_id, calendar=calendar)
    except BadSchedule as bad:
        raise refused(bad.field, bad.detail, bad.hint) from None


def read_named(
    tenant: Tenant, value: object, hash_id: str, find: Callable[[Tenant, str], Calendar] = held_calendar
) -> tuple[Schedule, Calendar | None]:
    """With the calendar it names among the tenant's, which stays as it is until the transaction ends."""
    try:
        name = calendar_name(value)
    except BadSchedule as bad:
        raise refused(bad.field, bad.detail, bad.hint) from None
    calendar = None if name is None else find(tenant, name)
    return read_schedule(value, hash_id, working_time(calendar)), calendar


def words_of(schedule_json: Json | None, hash_id: str) -> str:
    """They name the calendar, and do not need what it says."""
    return in_words(read_schedule(schedule_json, hash_id, ALWAYS_OPEN))


def first_time(
    schedule_json: Json | None,
    hash_id: str,
    anchor: datetime,
    now: datetime,
    calendar: Calendar | None = None,
) -> datetime | None:
    """The first planned time after now. A schedule that has none is a mistake of whoever sends it."""
    schedule = read_schedule(schedule_json, hash_id, working_time(calendar))
    found = next_after(schedule, now, anchor=anchor)
    if found is None and schedule_json is not None:
        raise _without_time(schedule, schedule_json, anchor, now)
    return found


def _without_time(schedule: Schedule, schedule_json: Json, anchor: datetime, now: datetime) -> InvalidInput:
    plain = schedule.base if isinstance(schedule, OnCalendar) else schedule
    if isinstance(schedule, OnCalendar) and next_after(plain, now, anchor=anchor) is not None:
        detail = f"no time of the schedule is open in {schedule.calendar}"
        hint = "other times, another calendar, or on_closed: next or previous moves them to another day"
        return refused("schedule.calendar", detail, hint, "never_open")
    since = f"it is now {as_text(now)}"
    if isinstance(plain, Once):
        return refused("schedule.at", f"{schedule_json['at']} is in the past", since, "past")
    field = "schedule.end" if schedule.end else "schedule"
    return refused(field, "the schedule has no time left", since, "past")


def _read(
    tenant: Tenant, data: object, job_id: object, *, required: tuple[str, ...], extra: Json
) -> tuple[Json, list[FieldError]]:
    given = {**extra, **expect_object(data, "")}
    errors = _unknown_fields(given)
    values: Json = {}
    for name in (field for field in FIELDS if field in given):
        _collect(errors, lambda n=name: values.update(_read_field(n, given[n], tenant, str(job_id))))  # type: ignore[misc]
    errors += [
        FieldError(name, f"{name} is required", code="required") for name in required if name not in given
    ]
    return values, errors


def _collect(errors: list[FieldError], read: Callable[[], object]) -> None:
    try:
        read()
    except InvalidInput as invalid:
        errors += invalid.errors


def _unknown_fields(given: Json) -> list[FieldError]:
    errors = []
    for name in islice((name for name in given if name not in FIELDS), MOST_ERRORS):
        if name in READ_ONLY:
            errors.append(FieldError(name, f"{name} cannot be set", READ_ONLY[name], "read_only"))
        else:
            hint = near(name, FIELDS) or listed(FIELDS, "known are")
            errors.append(FieldError(name[:60], f"{shown(name)} is not known", hint, "unknown_field"))
    return errors


def _read_field(name: str, value: object, tenant: Tenant, hash_id: str) -> Json:
    if name == "pool":
        return {"pool": _read_pool(tenant, value)}
    if name == "schedule":
        schedule, calendar = read_named(tenant, value, hash_id)
        return {"schedule": schedule.as_json(), "calendar": calendar}
    if name == "target":
        return {"target": _read_target(tenant, value)}
    return {name: READERS[name](value)}


def _read_target(tenant: Tenant, value: object) -> Json:
    target = targets.read_target(value)
    secret_references.check_target(tenant, target)
    return target


def _read_name(value: object) -> str:
    if not isinstance(value, str):
        raise refused("name", f"{shown(value)} is not a string", "at most 120 characters", "wrong_type")
    if not 1 <= len(value) <= 120 or value != value.strip() or not value.isprintable():
        raise refused(
            "name", f"{shown(value)} is not a name", "1 to 120 printable characters, no space at the ends"
        )
    return value


def _read_description(value: object) -> str:
    if not isinstance(value, str) or len(value) > 4000:
        raise refused(
            "description", f"{shown(value)} is not a description", "a string of at most 4000 characters"
        )
    return value


def _read_pool(tenant: Tenant, value: object) -> Pool:
    """A pool of other tenants is refused in the same words as one that does not exist."""
    pools = Pool.objects.open_to(tenant)
    pool = pools.filter(slug=value).first() if isinstance(value, str) else None
    if pool is None:
        slugs = list(pools.values_list("slug", flat=True))
        hint = near(str(value), slugs) or listed(slugs, "open to you are") or "no pool is open to you yet"
        raise refused("pool", f"{shown(value)} is not a pool open to you", hint, "unknown_pool")
    return pool


def _read_priority(value: object) -> int:
    return whole_number(value, "priority", 0, 1000)


def _read_tags(value: object) -> Json:
    tags = expect_object(value, "tags")
    if len(tags) > 50:
        raise refused("tags", f"{len(tags)} tags are too many", "at most 50")
    for name, text in tags.items():
        if not 1 <= len(name) <= LONGEST_TAG_NAME or ":" in name or not name.isprintable():
            raise refused("tags", f"{shown(name)} is not the name of a tag", "1 to 60 characters, no colon")
        if not isinstance(text, str) or len(text) > LONGEST_TAG_VALUE:
            raise refused(
                f"tags.{name}",
                f"{shown(text)} is not the value of a tag",
                "a string of at most 200 characters",
            )
    return tags


def _read_timeout(value: object) -> int:
    return durations.read(value, "timeout", SECOND, LONGEST_TIMEOUT) // timedelta(milliseconds=1)


def _read_overlap(value: object) -> str:
    if value not in Overlap.values:
        raise refused(
            "overlap", f"{shown(value)} is not an overlap policy", f"one of {', '.join(Overlap.values)}"
        )
    return str(value)


def _read_max_concurrency(value: object) -> int | None:
    return None if value is None else whole_number(value, "max_concurrency", 1, 10_000)


def _read_resources(value: object) -> Json:
    if value:
        raise refused(
            "resources", "placing by resources is not available yet", "leave it out", "not_available"
        )
    return {}


def _read_depends_on(value: object) -> list[object]:
    if value:
        raise refused("depends_on", "dependencies are not available yet", "leave it out", "not_available")
    return []


READERS: dict[str, Callable[[Any], Any]] = {
    "name": _read_name,
    "description": _read_description,
    "priority": _read_priority,
    "tags": _read_tags,
    "timeout": _read_timeout,
    "overlap": _read_overlap,
    "catch_up": read_catch_up,
    "retry": read_retry,
    "breaker": read_breaker,
    "max_concurrency": _read_max_concurrency,
    "resources": _read_resources,
    "depends_on": _read_depends_on,
}
