"""Report the health of this process to load balancers, and that of the installation to monitors, without a key.

Names of tenants, pools and hosts are shown to a signed-in superuser only.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.db import Error, connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from jobs.admin.permissions import is_superuser
from jobs.clock import database_now
from jobs.models import JOB_SLICES, Pool
from runs.models import SchedulerNode
from scheduler_project.doctor import schedulers
from scheduler_project.doctor.runs import LATE_SECONDS

logger = logging.getLogger(__name__)

MAX_QUERY_TIME = "2s"
# However many monitors ask, one of them queries the database in this time; the others get its report.
CACHED_SECONDS = 1.0
_cached: dict[bool, tuple[float, dict[str, Any] | Error]] = {}
_querying = {True: threading.Lock(), False: threading.Lock()}


@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """Report that the process answers; restart it when it does not."""
    return JsonResponse({"status": "ok"})


@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """Report whether the process reaches its database; send it no requests when it does not."""
    return _or_unavailable(_reaches_database)


@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """Report whether the installation triggers due jobs and dispatches ready runs; alert somebody when it does not."""
    return _or_unavailable(lambda: _cached_report(in_full=is_superuser(request)))


def _or_unavailable(answer: Callable[[], dict[str, Any]]) -> JsonResponse:
    try:
        found = answer()
    except Error:
        # The cause goes to the log alone: this page needs no key.
        logger.exception("the database is not available")
        return JsonResponse({"status": "unavailable", "database": "not available"}, status=503)
    return JsonResponse(found, status=200 if found["status"] == "ok" else 503)


def _reaches_database() -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return {"status": "ok", "database": "ok"}


def _cached_report(in_full: bool) -> dict[str, Any]:
    """Return the report of a moment ago, or a new one. A failure is cached as well, to spare a database in trouble."""
    # Under the lock: another thread may write the report while this one waits for it.
    with _querying[in_full]:
        at, found = _cached.get(in_full, (0.0, None))
        if found is None or time.monotonic() - at > CACHED_SECONDS:
            try:
                found = figures(in_full)
            except Error as error:
                found = error
            _cached[in_full] = time.monotonic(), found
    if isinstance(found, Error):
        raise found
    return found


@transaction.atomic
def figures(in_full: bool) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [MAX_QUERY_TIME])
    now = database_now()
    alive = schedulers.count_alive()
    due = {number: _age(at, now) for number, at in schedulers.watermarks().items()}
    waiting = {pool: _age(oldest, now) for pool, (oldest, _) in schedulers.oldest_waiting().items()}
    behind = sum(seconds > LATE_SECONDS for seconds in due.values())
    jobs, pools, recovery = schedulers.unheld() if alive else (set(), set(), set())
    found: dict[str, Any] = {
        "status": "ok" if alive and not any((behind, jobs, pools, recovery)) else "degraded",
        "database": "ok",
        "schedulers": alive,
        "slices": JOB_SLICES,
        "unheld_slices": len(jobs) if alive else JOB_SLICES,
        "slices_behind": behind,
        "unheld_pools": len(pools) if alive else Pool.objects.count(),
        "recovery_is_held": bool(alive and not recovery),
        "oldest_due_seconds": max(due.values(), default=0.0),
        "oldest_waiting_seconds": max(waiting.values(), default=0.0),
    }
    return {**found, "details": _details(due, waiting, jobs, pools, now)} if in_full else found


def _details(
    due: dict[int, float], waiting: dict[int, float], jobs: set[int], pools: set[int], now: datetime
) -> dict[str, Any]:
    slugs = dict(Pool.objects.values_list("pk", "slug"))
    nodes = SchedulerNode.objects.filter(left_at=None).order_by("host", "pid")
    return {
        "oldest_due_seconds_by_slice": due,
        "oldest_waiting_seconds_by_pool": {slugs.get(pool, str(pool)): at for pool, at in waiting.items()},
        "unheld_slices": sorted(jobs),
        "unheld_pools": sorted(slugs.get(pool, str(pool)) for pool in pools),
        "schedulers": [
            {
                "host": node.host,
                "pid": node.pid,
                "slices": node.job_slices,
                "pools": node.pools,
                "runs_recovery": node.runs_recovery,
                "loops": node.loops,
                "skew_ms": node.skew_ms,
                "seen_seconds_ago": _age(node.last_seen_at, now),
            }
            for node in nodes
        ],
    }


def _age(at: datetime, now: datetime) -> float:
    return round(max(0.0, (now - at).total_seconds()), 3)
