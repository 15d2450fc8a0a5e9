"""Who schedules what, for the platform's operators: in a list of the admin and on the dashboard."""

import math
from datetime import datetime, timedelta
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from jobs.database_clock import database_now
from jobs.display import NOTHING, brief, moment
from jobs.staff import BAD, GOOD, QUIET, WARNING, OfThePlatform, label
from runs.models import SchedulerNode
from runs.presence import SILENT_SECONDS, troubles_of
from scheduler_project.sdk.clock_skew import FARTHEST_MS

AT_WORK, TROUBLED, SILENT, LEFT = "at work", "in trouble", "silent", "left"
COLOURS = {AT_WORK: GOOD, TROUBLED: BAD, SILENT: WARNING, LEFT: QUIET}


def condition(node: SchedulerNode, now: datetime) -> str:
    if node.left_at is not None:
        return LEFT
    if now - node.last_seen_at > timedelta(seconds=SILENT_SECONDS):
        return SILENT
    return TROUBLED if troubles_of(node.loops) else AT_WORK


def condition_label(node: SchedulerNode, now: datetime) -> SafeString:
    found = condition(node, now)
    return label(found, COLOURS[found])


def skew_in_words(skew_ms: float | None) -> str:
    if skew_ms is None:
        return NOTHING
    if math.isnan(skew_ms):
        return "not a number"
    sign = "" if abs(skew_ms) < 0.5 else "+" if skew_ms > 0 else "−"
    if abs(skew_ms) > FARTHEST_MS:
        return f"{sign} over 10 years"
    return f"{sign}{brief(timedelta(milliseconds=abs(skew_ms)))}"


def slowest_pass(node: SchedulerNode) -> str:
    longest = max((loop.get("longest_seconds") or 0.0 for loop in node.loops.values()), default=0.0)
    return brief(timedelta(seconds=longest))


class SchedulerNodeAdmin(OfThePlatform):
    list_display = (
        "name",
        "shown_condition",
        "job_slices",
        "pools",
        "rescues",
        "slowest",
        "clock",
        "seen",
        "started",
    )
    ordering = ("-last_seen_at",)
    sortable_by = ("name", "seen", "started")
    search_fields = ("host",)
    fields = (
        ("host", "pid"),
        ("shown_condition", "job_slices", "pools", "rescues"),
        ("trigger", "dispatch", "rescue", "celery_beat"),
        ("clock", "seen", "started", "left"),
    )

    @admin.display(description="scheduler", ordering="host")
    def name(self, node: SchedulerNode) -> str:
        return str(node)

    @admin.display(description="state")
    def shown_condition(self, node: SchedulerNode) -> SafeString:
        return condition_label(node, database_now())

    @admin.display(description="longest pass lately")
    def slowest(self, node: SchedulerNode) -> str:
        return slowest_pass(node)

    @admin.display(description="clock ahead")
    def clock(self, node: SchedulerNode) -> str:
        return skew_in_words(node.skew_ms)

    @admin.display(description="last seen", ordering="last_seen_at")
    def seen(self, node: SchedulerNode) -> SafeString | str:
        return moment(node.last_seen_at)

    @admin.display(description="started", ordering="started_at")
    def started(self, node: SchedulerNode) -> SafeString | str:
        return moment(node.started_at)

    @admin.display(description="left")
    def left(self, node: SchedulerNode) -> SafeString | str:
        return moment(node.left_at)

    @admin.display(description="trigger loop")
    def trigger(self, node: SchedulerNode) -> str:
        return loop_in_words(node.loops.get("trigger"))

    @admin.display(description="dispatch loop")
    def dispatch(self, node: SchedulerNode) -> str:
        return loop_in_words(node.loops.get("dispatch"))

    @admin.display(description="rescue loop")
    def rescue(self, node: SchedulerNode) -> str:
        return loop_in_words(node.loops.get("rescue"))

    @admin.display(description="celery-beat loop")
    def celery_beat(self, node: SchedulerNode) -> str:
        return loop_in_words(node.loops.get("celery-beat"))


def loop_in_words(loop: dict[str, Any] | None) -> str:
    """As it was when the scheduler last told."""
    if loop is None:
        return NOTHING
    since = loop.get("success_seconds_ago")
    last = "never succeeded" if since is None else f"succeeded {brief(timedelta(seconds=since))} before"
    failed = f", failed {loop['failures']} times since" if loop.get("failures") else ""
    return f"{last}{failed}; longest pass {brief(timedelta(seconds=loop.get('longest_seconds') or 0.0))}"
