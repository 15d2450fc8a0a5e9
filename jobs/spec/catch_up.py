"""Read the catch-up policy of a job: what becomes of planned times that were missed."""

from datetime import timedelta

from django.conf import settings

from jobs.spec.field_types import Field, Input, InputKind
from jobs.validation import durations
from jobs.validation.checks import Json, abbreviate, expect_object, invalid, listed, whole_number
from jobs.validation.schema import duration, number, obj, text

DEFAULT_CATCH_UP: Json = {"policy": "last", "window": 86_400.0}
CATCH_UP_POLICIES = ("last", "skip", "all")
# These go with the policy `all` alone.
DEFAULT_ALL: Json = {"max": 1000, "per_minute": 60, "order": "oldest"}
COUNTS = ("max", "per_minute")
MAX_CAUGHT_UP = 10_000
CATCH_UP_ORDERS = ("oldest", "newest")


def read_catch_up(value: object, *_: object) -> Json:
    given = expect_object(value, "catch_up", ("policy", "window", *DEFAULT_ALL))
    policy = given.get("policy", DEFAULT_CATCH_UP["policy"])
    if policy not in CATCH_UP_POLICIES:
        available = listed(CATCH_UP_POLICIES, "available are")
        raise invalid("catch_up.policy", f"{abbreviate(policy)} is not available", available)
    length = given.get("window", DEFAULT_CATCH_UP["window"])
    window = durations.read(length, "catch_up.window", MIN_WINDOW, MAX_WINDOW)
    read = {"policy": policy, "window": window.total_seconds()}
    if policy == "all":
        merged = {**DEFAULT_ALL, **given}
        if merged["order"] not in CATCH_UP_ORDERS:
            one_of = f"one of {', '.join(CATCH_UP_ORDERS)}"
            raise invalid("catch_up.order", f"{abbreviate(merged['order'])} is not an order", one_of)
        counts = {name: whole_number(merged[name], f"catch_up.{name}", 1, MAX_CAUGHT_UP) for name in COUNTS}
        return {**read, **counts, "order": merged["order"]}
    for name in DEFAULT_ALL:
        if name in given:
            detail = f"{name} has no meaning beside the policy {policy}"
            raise invalid(f"catch_up.{name}", detail, "it goes with the policy all")
    return read


def _as_json(stored: Json) -> Json:
    return durations.with_texts(stored, "window")


def _of_same_policy(present: Json, patch: Json) -> Json:
    """Drop what goes with the policy `all` alone, if the patch replaces it."""
    if patch.get("policy", present["policy"]) == "all":
        return present
    return {name: part for name, part in present.items() if name not in DEFAULT_ALL}


def _join(parts: Json) -> Json:
    return {name: part for name, part in parts.items() if parts["policy"] == "all" or name not in DEFAULT_ALL}


COUNT: Json = {"minimum": 1, "maximum": MAX_CAUGHT_UP}
ALL = "catch_up_policy == 'all'"
# A run for an older time would find no partition any more.
MIN_WINDOW, MAX_WINDOW = timedelta(seconds=1), timedelta(days=settings.HOT_PERIOD_DAYS - 2)
WINDOW = duration("Older ones are only noted.", MIN_WINDOW, MAX_WINDOW, default="P1D")
CATCH_UP = Field(
    name="catch_up",
    read=read_catch_up,
    default={},
    as_json=_as_json,
    merges_into=_of_same_policy,
    schema={
        "oneOf": [
            obj(
                {
                    "policy": text(
                        "`last`: the last of them runs. `skip`: none.", enum=["last", "skip"], default="last"
                    ),
                    "window": WINDOW,
                },
                title="CatchUp",
            ),
            obj(
                {
                    "policy": text("Every one of them runs.", enum=["all"]),
                    "window": WINDOW,
                    "max": number("At most so many for one gap.", **COUNT, default=DEFAULT_ALL["max"]),
                    "per_minute": number("The pace.", **COUNT, default=DEFAULT_ALL["per_minute"]),
                    "order": text(
                        "Which go first.", enum=list(CATCH_UP_ORDERS), default=DEFAULT_ALL["order"]
                    ),
                },
                required=("policy",),
                title="CatchUpAll",
            ),
        ],
        "description": "What becomes of times nobody could trigger.",
    },
    inputs=(
        Input(
            "catch_up_policy",
            InputKind.CHOICE,
            "How times missed in an outage are treated.",
            "Missed times",
            [(policy, policy) for policy in CATCH_UP_POLICIES],
        ),
        Input(
            "catch_up_window",
            InputKind.DURATION,
            "Older ones are only recorded.",
            "Maximum age",
            beside="catch_up_policy",
        ),
        Input(
            "catch_up_max",
            InputKind.NUMBER,
            "Runs created for one interval of missed times.",
            "Maximum number",
            only_when=ALL,
        ),
        Input(
            "catch_up_per_minute",
            InputKind.NUMBER,
            "Limits catch-up, so that it does not delay runs that are due.",
            "Per minute",
            only_when=ALL,
            beside="catch_up_max",
        ),
        Input(
            "catch_up_order",
            InputKind.CHOICE,
            label="Order",
            choices=[(order, order) for order in CATCH_UP_ORDERS],
            only_when=ALL,
        ),
    ),
    suggested=_as_json(DEFAULT_CATCH_UP),
    split_value=lambda value: {**DEFAULT_ALL, **value},
    join_parts=_join,
)
