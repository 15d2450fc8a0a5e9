"""Check the tables of runs: every day has a partition, and every run exactly one state."""

import time
from datetime import timedelta, timezone
from typing import Any

from django.conf import settings
from django.db import connection

from jobs.clock import database_now
from runs.scheduler import day_partitions
from scheduler_project.doctor.database import rows, some
from scheduler_project.doctor.findings import Findings, counted, fine, fine_unless_found, note, problem
from scheduler_project.sdk.ids import id_range

BUDGET_SECONDS = 20.0


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
                f" {settings.HOT_PERIOD_DAYS}: nothing older can be caught up"
            )
        else:
            yield fine(f"{found.table} has partitions for {found.days_ahead} days ahead")
    for (name,) in rows(
        "SELECT child.relname FROM pg_class child JOIN pg_inherits ON inhrelid = child.oid"
        " WHERE inhparent IN (to_regclass('beatkeeper_run'), to_regclass('beatkeeper_attempt'))"
        "   AND pg_get_expr(child.relpartbound, child.oid) = 'DEFAULT'"
    ):
        yield problem(
            f"{name} is a default partition: rows in it block the partitions of their days",
            f"move its rows away and drop it: DROP TABLE {name}",
        )


@fine_unless_found("every run has one state")
def one_state_each() -> Findings:
    """Check that an unfinished run has exactly one live row, and a finished one none."""
    yield from _live_runs_of_nothing()
    yield from _orphaned_runs()


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
        f" have no run: {some([row[0] for row in found])}",
        "somebody wrote to the tables by hand: delete these rows of beatkeeper_live_run",
    )


def _orphaned_runs() -> Findings:
    """Look for unfinished runs without a live row, newest day first, within a time limit: there may be billions."""
    end = time.monotonic() + BUDGET_SECONDS
    orphans: list[tuple[Any, ...]] = []
    today = database_now().astimezone(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    for back in range(settings.HOT_PERIOD_DAYS + 1):
        start = today - timedelta(days=back)
        orphans += rows(
            "SELECT run.id FROM beatkeeper_run run WHERE run.id >= %s AND run.id < %s AND run.state IS NULL"
            " AND NOT EXISTS (SELECT FROM beatkeeper_live_run live WHERE live.id = run.id) LIMIT 1000",
            list(id_range(start, start + timedelta(days=1))),
        )
        if time.monotonic() > end:
            yield note(f"looked for orphaned runs in the last {counted(back + 1, 'day')} only: time ran out")
            break
    if orphans:
        yield problem(
            f"{counted(len(orphans), 'run')} without an outcome and without a live row, so they never"
            f" run: {some([row[0] for row in orphans])}",
            "rows of beatkeeper_live_run were deleted by hand, or restored without them:"
            " request the runs anew from their jobs",
        )
