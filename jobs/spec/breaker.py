"""Read the circuit breaker of a job: when failures hold its runs, and for how long."""

from datetime import timedelta

from jobs.spec.field_types import Field, Input, InputKind
from jobs.validation import durations
from jobs.validation.checks import Json, expect_object, invalid, whole_number
from jobs.validation.schema import duration, number, obj

DEFAULT_COOLDOWN = "PT5M"
MIN_COOLDOWN, MAX_COOLDOWN = timedelta(seconds=1), timedelta(days=7)


def read_breaker(value: object, *_: object) -> Json | None:
    if value is None:
        return None
    given = expect_object(value, "breaker", ("failures", "cooldown"))
    if "failures" not in given:
        raise invalid("breaker.failures", "failures is required", "so many in a row, such as 5", "required")
    length = given.get("cooldown", DEFAULT_COOLDOWN)
    cooldown = durations.read(length, "breaker.cooldown", MIN_COOLDOWN, MAX_COOLDOWN)
    return {
        "failures": whole_number(given["failures"], "breaker.failures", 1, 1000),
        "cooldown": cooldown.total_seconds(),
    }


BREAKER = Field(
    name="breaker",
    read=read_breaker,
    as_json=lambda stored: stored and durations.with_texts(stored, "cooldown"),
    schema=obj(
        {
            "failures": number("So many in a row, over all runs of the job.", minimum=1, maximum=1000),
            "cooldown": duration("", MIN_COOLDOWN, MAX_COOLDOWN, default=DEFAULT_COOLDOWN),
        },
        required=("failures",),
        title="BreakerPolicy",
        nullable=True,
        description="After so many failed attempts in a row the job's runs are held; after the cool-down one tries.",
    ),
    inputs=(
        Input(
            "breaker_failures",
            InputKind.NUMBER,
            "After this many failures in a row, over all runs, the job's runs are held. Empty: never.",
            "Breaker",
        ),
        Input(
            "breaker_cooldown",
            InputKind.DURATION,
            "Afterwards one run tests whether it works again.",
            "Cool-down",
            beside="breaker_failures",
        ),
    ),
    split_value=lambda value: value or {"failures": None, "cooldown": DEFAULT_COOLDOWN},
    join_parts=lambda parts: None if parts["failures"] is None else parts,
)
