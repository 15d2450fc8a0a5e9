"""The catch-up policy of a job as a team writes it down: what becomes of planned times that were missed."""

from datetime import timedelta

from django.conf import settings

from jobs import durations
from jobs.input_checks import Json, expect_object, listed, refuse_unknown, refused, shown, whole_number

DEFAULT_CATCH_UP: Json = {"policy": "last", "window": 86_400.0}
CATCH_UP_POLICIES = ("last", "skip", "all")
# Of the policy `all` alone.
DEFAULT_MAKING_UP: Json = {"max": 1000, "per_minute": 60, "order": "oldest"}
MOST_MADE_UP = 10_000
CATCH_UP_ORDERS = ("oldest", "newest")


def read_catch_up(value: object) -> Json:
    given = expect_object(value, "catch_up")
    refuse_unknown(given, ("policy", "window", *DEFAULT_MAKING_UP), "catch_up")
    policy = given.get("policy", DEFAULT_CATCH_UP["policy"])
    if policy not in CATCH_UP_POLICIES:
        available = listed(CATCH_UP_POLICIES, "available are")
        raise refused("catch_up.policy", f"{shown(policy)} is not available", available)
    # A run for an older time would find no partition any more.
    longest = timedelta(days=settings.HOT_PERIOD_DAYS - 2)
    window = durations.read(
        given.get("window", DEFAULT_CATCH_UP["window"]), "catch_up.window", timedelta(seconds=1), longest
    )
    read = {"policy": policy, "window": window.total_seconds()}
    return {**read, **_read_making_up(given)} if policy == "all" else _without_making_up(read, given)


def _read_making_up(given: Json) -> Json:
    merged = {**DEFAULT_MAKING_UP, **given}
    if merged["order"] not in CATCH_UP_ORDERS:
        one_of = f"one of {', '.join(CATCH_UP_ORDERS)}"
        raise refused("catch_up.order", f"{shown(merged['order'])} is not an order", one_of)
    return {
        "max": whole_number(merged["max"], "catch_up.max", 1, MOST_MADE_UP),
        "per_minute": whole_number(merged["per_minute"], "catch_up.per_minute", 1, MOST_MADE_UP),
        "order": merged["order"],
    }


def _without_making_up(read: Json, given: Json) -> Json:
    for name in DEFAULT_MAKING_UP:
        if name in given:
            detail = f"{name} has no meaning beside the policy {read['policy']}"
            raise refused(f"catch_up.{name}", detail, "it goes with the policy all")
    return read
