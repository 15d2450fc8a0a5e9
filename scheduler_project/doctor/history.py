"""The tables of runs: is there a partition for every day, and does every run have exactly one state."""

import time
from datetime import timedelta, timezone
from typing import Any

from django.conf import settings
from django.db import connection

from jobs.database_clock import database_now
from runs import day_partitions
from scheduler_project.doctor.database import rows
from scheduler_project.doctor.findings import Findings, counted, fine, note, problem
from scheduler_project.sdk.ids import id_range

BUDGET_SECONDS = 20.0
SHOWN = 3


def partitions() -> Findings:
    today = database_now().astimezone(timezone.utc).date()
    with connection.cursor() as cursor:
        coverages = day_partitions.coverage(cursor, today)
    for found in coverages:
        if found.days_ahead < day_partitions.ALARM_BELOW_DAYS:
            yield problem(
                f"{found.table} has partitions for {counted(max(found.days_ahead, 0), 'day')} ahead without a"
                f" hole, of {settings.PARTITIONS_AHEAD_DAYS}: the first run after that cannot be written",
                "start a scheduler, which makes them, and look in its log for the reason they are missing",
            )
        elif found.days_back < settings.HOT_PERIOD_DAYS:
            yield note(
                f"{found.table} reaches {counted(max(found.days_back, 0), 'day')} back without a hole, of"
                f" {settings.HOT_PERIOD_DAYS}: nothing older can be caught up",
            )
        else:
            yield fine(f"{found.table} has partitions for {found.days_ahead} days ahead")
    yield from _default_partitions()


def _default_partitions() -> Findings:
    for (name,) in rows(
        "SELECT child.relname FROM pg_class child JOIN pg_inherits ON inhrelid = child.oid"
        " WHERE inhparent IN (to_regclass('beatkeeper_run'), to_regclass('beatkeeper_attempt'))"
        "   AND pg_get_expr(child.relpartbound, child.oid) = 'DEFAULT'"
    ):
        yield problem(
            f"{name} is a default partition: rows in it block the partitions of their days",
            f"move its rows away and drop it: DROP TABLE {name}",
        )


def one_state_each() -> Findings:
    """A run without an outcome has exactly one live row, a run with one has none."""
    broken = [*_live_runs_of_nothing(), *_runs_forgotten()]
    yield from broken
    if not broken:
        yield fine("every run has one state")


def _live_runs_of_nothing() -> Findings:
    found = rows(
        "SELECT live.id, run.state FROM beatkeeper_live_run live LEFT JOIN beatkeeper_run run ON run.id = live.id"
        " WHERE run.id IS NULL OR run.state IS NOT NULL LIMIT 1000"
    )
    if not found:
        return
    ended = sum(1 for _, state in found if state)
    yield problem(
        f"{counted(len(found), 'live run')} must not exist, of which {ended} ended already and {len(found) - ended}"
        f" have no run: {_ids(found)}",
        "somebody wrote to the tables by hand: delete these rows of beatkeeper_live_run",
    )


def _runs_forgotten() -> Findings:
    """Newest day first, as far as the time allows: the tables may hold billions."""
    end = time.monotonic() + BUDGET_SECONDS
    forgotten: list[tuple[Any, ...]] = []
    today = database_now().astimezone(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    for back in range(settings.HOT_PERIOD_DAYS + 1):
        start = today - timedelta(days=back)
        forgotten += rows(
            "SELECT run.id FROM beatkeeper_run run WHERE run.id >= %s AND run.id < %s AND run.state IS NULL"
            " AND NOT EXISTS (SELECT FROM beatkeeper_live_run live WHERE live.id = run.id) LIMIT 1000",
            list(id_range(start, start + timedelta(days=1))),
        )
        if time.monotonic() > end:
            yield note(f"looked for forgotten runs in the last {counted(back + 1, 'day')} only: time ran out")
            break
    if forgotten:
        yield problem(
            f"{counted(len(forgotten), 'run')} without an outcome and without a live row, so nobody will ever"
            f" run them: {_ids(forgotten)}",
            "rows of beatkeeper_live_run were deleted by hand, or restored without them:"
            " request the runs anew from their jobs",
        )


def _ids(found: list[tuple[Any, ...]]) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(str(row[0]) for row in found[:SHOWN]) + more
