"""Schedulers in the admin, for operators, and as the dashboard shows them."""

import math
from datetime import datetime, timedelta
from typing import Any

from django.utils.safestring import SafeString

from jobs.admin.base import OperatorAdmin
from jobs.admin.columns import column, moment_column
from jobs.admin.formatting import NOTHING, brief
from jobs.admin.html import BAD, GOOD, QUIET, WARNING, state_label
from jobs.clock import database_now
from runs.models import SchedulerNode
from runs.scheduler.status import SILENT_SECONDS, troubles_of
from scheduler_project.sdk.ledger.clock_skew import MAX_SKEW_MS

AT_WORK, TROUBLED, SILENT, LEFT = "running", "failing", "silent", "left"
COLOURS = {AT_WORK: GOOD, TROUBLED: BAD, SILENT: WARNING, LEFT: QUIET}


def condition(node: SchedulerNode, now: datetime) -> str:
    if node.left_at is not None:
        return LEFT
    if now - node.last_seen_at > timedelta(seconds=SILENT_SECONDS):
        return SILENT
    return TROUBLED if troubles_of(node.loops) else AT_WORK


def condition_label(node: SchedulerNode, now: datetime) -> SafeString:
    return state_label(condition(node, now), COLOURS)


def describe_skew(skew_ms: float | None) -> str:
    if skew_ms is None:
        return NOTHING
    if math.isnan(skew_ms):
        return "not a number"
    sign = "" if abs(skew_ms) < 0.5 else "+" if skew_ms > 0 else "−"
    if abs(skew_ms) > MAX_SKEW_MS:
        return f"{sign} over 10 years"
    return f"{sign}{brief(timedelta(milliseconds=abs(skew_ms)))}"


def slowest_pass(node: SchedulerNode) -> str:
    longest = max((loop.get("longest_seconds") or 0.0 for loop in node.loops.values()), default=0.0)
    return brief(timedelta(seconds=longest))


class SchedulerNodeAdmin(OperatorAdmin):
    list_display = (
        "name",
        "condition_column",
        "job_slices",
        "pools",
        "runs_recovery",
        "slowest",
        "clock",
        "seen",
        "started",
    )
    ordering = ("-last_seen_at",)
    sortable_by = ("name", "seen", "started")
    search_fields = ("host",)
    more_fields = ("trigger", "dispatch", "recovery", "celery_beat", "totals", "left")

    name = column("scheduler", str, ordering="host")
    condition_column = column("state", lambda node: condition_label(node, database_now()))
    slowest = column("longest recent pass", lambda node: slowest_pass(node))
    clock = column("clock ahead", lambda node: describe_skew(node.skew_ms))
    seen = moment_column("last_seen_at", "last seen")
    started = moment_column("started_at")
    left = moment_column("left_at")
    trigger = column("trigger loop", lambda node: describe_loop(node.loops.get("trigger")))
    dispatch = column("dispatch loop", lambda node: describe_loop(node.loops.get("dispatch")))
    recovery = column("recovery loop", lambda node: describe_loop(node.loops.get("recovery")))
    totals = column("passes since its start", lambda node: describe_passes(node.passes))
    celery_beat = column("celery-beat loop", lambda node: describe_loop(node.loops.get("celery-beat")))


def describe_passes(passes: dict[str, dict[str, Any]]) -> str:
    """Describe what the passes of a scheduler counted since it started, by kind of pass."""
    kinds = []
    for kind, totals in passes.items():
        counts = ", ".join(f"{name} {count:,}" for name, count in totals["counts"].items() if count)
        kinds.append(f"{kind} {totals['passes']:,}" + (f" ({counts})" if counts else ""))
    return "; ".join(kinds) or NOTHING


def describe_loop(loop: dict[str, Any] | None) -> str:
    """Describe a loop by the scheduler's latest report."""
    if loop is None:
        return NOTHING
    since = loop.get("success_seconds_ago")
    last = "never succeeded" if since is None else f"succeeded {brief(timedelta(seconds=since))} before"
    failed = f", failed {loop['failures']} times since" if loop.get("failures") else ""
    return f"{last}{failed}; longest pass {brief(timedelta(seconds=loop.get('longest_seconds') or 0.0))}"
