"""Declare the fields of a job, a row each. Everything that knows a field derives it from its row."""

from datetime import timedelta
from functools import partial
from operator import attrgetter

from jobs.models import DEFAULT_PRIORITY, OVERLAP_POLICIES, Job, JobVersion, Overlap, Pool
from jobs.secrets.references import check_references
from jobs.spec import targets
from jobs.spec.breaker import BREAKER
from jobs.spec.catch_up import CATCH_UP
from jobs.spec.field_types import Field, Input, InputKind, Origin, choice, duration, integer
from jobs.spec.retry import RETRY
from jobs.spec.schedule import SCHEDULE
from jobs.spec.tags import TAGS, read_tags
from jobs.validation.checks import Json, abbreviate, expect_text, invalid, listed, near, refuse_unprintable
from jobs.validation.schema import ref, text

MIN_TIMEOUT, MAX_TIMEOUT = timedelta(seconds=1), timedelta(days=30)
# Printable, no space at the ends.
NAME_PATTERN = r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$"
OVERLAPS = {str(name): policy.words for name, policy in OVERLAP_POLICIES.items()}
# What an answer says beside the fields.
DERIVED = (
    *(
        "id",
        "version",
        "warnings",
        "missed_so_far",
        "schedule_description",
        "status_reason",
        "status_at",
        "links",
    ),
    *("next_run_at", "estimated_start_at", "created_at", "updated_at"),
)
READ_ONLY = {
    "status": "use POST …/pause, …/resume or …/cancel",
    "paused_until": "use POST …/pause with `until`",
    **dict.fromkeys(DERIVED, "leave it out: it is read only"),
    "version": "leave it out; If-Match with the job's ETag guards against changes of others",
}


def _read_name(value: object, _: Origin) -> str:
    if not isinstance(value, str):
        raise invalid("name", f"{abbreviate(value)} is not a string", "at most 120 characters", "wrong_type")
    hint = "1 to 120 printable characters, no space at the ends"
    if not 1 <= len(value) <= 120 or value != value.strip():
        raise invalid("name", f"{abbreviate(value)} is not a name", hint)
    refuse_unprintable(value, "name", hint)
    return value


def _read_pool(value: object, origin: Origin) -> Pool:
    """Refuse a pool of other tenants in the same words as one that does not exist."""
    pools = Pool.objects.open_to(origin.tenant)
    pool = pools.filter(slug=value).first() if isinstance(value, str) else None
    if pool is None:
        slugs = list(pools.values_list("slug", flat=True))
        hint = near(str(value), slugs) or listed(slugs, "open to you are") or "no pool is open to you yet"
        raise invalid("pool", f"{abbreviate(value)} is not a pool open to you", hint, "unknown_pool")
    return pool


def _read_target(value: object, origin: Origin) -> Json:
    target = targets.read_target(value)
    targets.kind_of(target).check_secret_places(target)
    check_references(origin.tenant, target, "target")
    return target


def _of_same_kind(present: Json, patch: Json) -> Json:
    return present if patch.get("kind", present["kind"]) == present["kind"] else {}


# A column of the job itself, shown at the head of the form.
_of_job = partial(Field, versioned=False, section="")


# Requests are checked in this order.
ROWS = (
    _of_job(
        name="name",
        read=_read_name,
        schema=text(
            "Once in a tenant.", minLength=1, maxLength=120, pattern=NAME_PATTERN, example="nightly report"
        ),
        required=True,
        inputs=(Input("name", InputKind.NAME),),
        suggested="",
    ),
    _of_job(
        name="description",
        read=lambda value, _: expect_text(value, "description", "a description", 4000),
        schema=text(maxLength=4000),
        default="",
        inputs=(Input("description", InputKind.AREA),),
    ),
    _of_job(
        name="pool",
        read=_read_pool,
        schema=text("The workers that run it."),
        default="default",
        as_json=attrgetter("slug"),
        as_audited=attrgetter("slug"),
        inputs=(Input("pool", InputKind.MODEL, beside="name"),),
        options=(),
    ),
    integer(
        "priority",
        0,
        1000,
        "Higher goes first; a run that waits gains on those behind it.",
        "0 to 1000; higher goes first. Low priorities still get their turn.",
        default=DEFAULT_PRIORITY,
        versioned=False,
        section="",
    ),
    _of_job(
        name="tags",
        read=lambda value, _: read_tags(value),
        schema=TAGS,
        default={},
        inputs=(Input("tags", InputKind.OBJECT, 'Such as {"team": "payments"}.', beside="priority"),),
    ),
    Field(
        name="target",
        read=_read_target,
        schema=ref("Target"),
        required=True,
        redacted=True,
        merges_into=_of_same_kind,
        section="",
        inputs=(Input("target", InputKind.CODE),),
        suggested={"kind": "http", "method": "GET", "url": "https://"},
        options=("args", "kwargs"),
    ),
    SCHEDULE,
    duration(
        "timeout",
        MIN_TIMEOUT,
        MAX_TIMEOUT,
        "1 second to 30 days.",
        "An attempt that takes longer is ended.",
        default="PT1H",
    ),
    choice(
        "overlap",
        "an overlap policy",
        OVERLAPS,
        "When a time comes while an earlier planned run is unfinished, also between its tries. "
        + ". ".join(f"`{policy}`: {described}" for policy, described in OVERLAPS.items())
        + ". Manual runs and retries count for nothing here.",
        "Applies while an earlier planned run is unfinished, also between its attempts.",
        default=Overlap.SKIP.value,
    ),
    CATCH_UP,
    RETRY,
    BREAKER,
    integer(
        "max_concurrency",
        1,
        10_000,
        "Runs at once.",
        "Runs of this job queued or running at once; empty: no limit.",
        beside="timeout",
    ),
)
FIELDS = {field.name: field for field in ROWS}


def _columns(*, versioned: bool) -> tuple[str, ...]:
    rows = (field for field in ROWS if field.versioned == versioned)
    return tuple(column for field in rows for column in field.columns or (field.name,))


JOB_COLUMNS, VERSION_COLUMNS = _columns(versioned=False), _columns(versioned=True)


def stored(field: Field, job: Job, spec: JobVersion) -> object:
    """Take the stored value of a field from the row that has it."""
    found: object = getattr(spec if field.versioned else job, field.column)
    return found


def fields_json(job: Job, spec: JobVersion) -> Json:
    """Write the fields as a request would give them."""
    return {name: field.as_json(stored(field, job, spec)) for name, field in FIELDS.items()}
