"""What a load balancer asks of this process, and what a monitor asks of the whole installation; without a key.

Anybody may ask, so nobody is told of a tenant, a pool or a host: those only a superuser sees who is signed in.
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

from jobs.database_clock import database_now
from jobs.models import JOB_SLICES, Pool
from jobs.staff import is_superuser
from runs import slices
from runs.models import SchedulerNode
from scheduler_project.doctor import schedulers
from scheduler_project.doctor.work import LATE_SECONDS

logger = logging.getLogger(__name__)

SLOWEST_FIGURE = "2s"
# However many ask, the database is asked once in so long, by one of them.
KEPT_SECONDS = 1.0
_kept: dict[bool, tuple[float, dict[str, Any] | Error]] = {}
_asking = threading.Lock()


@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """The process answers: restart it when it does not."""
    return JsonResponse({"status": "ok"})


@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """It also reaches its database: send it no requests when it does not."""
    return _or_unavailable(_reaches_database)


@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """The installation fires what is due and hands over what is ready: wake somebody when it does not."""
    return _or_unavailable(lambda: _kept_figures(in_full=is_superuser(request)))


def _or_unavailable(answer: Callable[[], dict[str, Any]]) -> JsonResponse:
    try:
        found = answer()
    except Error:
        # What is wrong goes to the log alone: anybody may ask here.
        logger.exception("the database is not available")
        return JsonResponse({"status": "unavailable", "database": "not available"}, status=503)
    return JsonResponse(found, status=200 if found["status"] == "ok" else 503)


def _reaches_database() -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    return {"status": "ok", "database": "ok"}


def _kept_figures(in_full: bool) -> dict[str, Any]:
    found = _fresh(in_full)
    if found is None:
        with _asking:
            # Somebody else may have asked while we waited.
            found = _fresh(in_full)
            if found is None:
                found = _asked(in_full)
                _kept[in_full] = time.monotonic(), found
    if isinstance(found, Error):
        raise found
    return found


def _fresh(in_full: bool) -> dict[str, Any] | Error | None:
    at, found = _kept.get(in_full, (0.0, None))
    return found if time.monotonic() - at <= KEPT_SECONDS else None


def _asked(in_full: bool) -> dict[str, Any] | Error:
    """That it cannot be told is kept as well: a database in trouble is asked no more often than another."""
    try:
        return figures(in_full)
    except Error as error:
        return error


def figures(in_full: bool) -> dict[str, Any]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('statement_timeout', %s, true)", [SLOWEST_FIGURE])
        return _figures(in_full)


def _figures(in_full: bool) -> dict[str, Any]:
    now = database_now()
    alive = len(schedulers.held(slices.JOBS + slices.MEMBER))
    due = {number: _age(at, now) for number, at in schedulers.watermarks().items()}
    waiting = {pool: _age(oldest, now) for pool, (oldest, _) in schedulers.oldest_waiting().items()}
    behind = sorted(number for number, seconds in due.items() if seconds > LATE_SECONDS)
    alone = _held_by_nobody() if alive else {}
    found: dict[str, Any] = {
        "status": "ok" if alive and not behind and not any(alone.values()) else "degraded",
        "database": "ok",
        "schedulers": alive,
        "slices": JOB_SLICES,
        "slices_held_by_nobody": len(alone["slices"]) if alone else JOB_SLICES,
        "slices_behind": len(behind),
        "pools_held_by_nobody": len(alone["pools"]) if alone else Pool.objects.count(),
        "rescue_is_held": bool(alone and not alone["rescue"]),
        "oldest_due_seconds": max(due.values(), default=0.0),
        "oldest_waiting_seconds": max(waiting.values(), default=0.0),
    }
    return {**found, "details": _details(due, waiting, alone, now)} if in_full else found


def _held_by_nobody() -> dict[str, set[int]]:
    return {
        "slices": schedulers.uncovered(slices.JOBS, range(JOB_SLICES)),
        "pools": schedulers.uncovered(slices.POOLS, Pool.objects.values_list("pk", flat=True)),
        "rescue": schedulers.uncovered(slices.RESCUE, [0]),
    }


def _details(
    due: dict[int, float], waiting: dict[int, float], alone: dict[str, set[int]], now: datetime
) -> dict[str, Any]:
    slugs = dict(Pool.objects.values_list("pk", "slug"))
    nodes = SchedulerNode.objects.filter(left_at=None).order_by("host", "pid")
    return {
        "oldest_due_seconds_by_slice": due,
        "oldest_waiting_seconds_by_pool": {slugs.get(pool, str(pool)): at for pool, at in waiting.items()},
        "slices_held_by_nobody": sorted(alone.get("slices", ())),
        "pools_held_by_nobody": sorted(slugs.get(pool, str(pool)) for pool in alone.get("pools", ())),
        "schedulers": [
            {
                "host": node.host,
                "pid": node.pid,
                "slices": node.job_slices,
                "pools": node.pools,
                "rescues": node.rescues,
                "loops": node.loops,
                "skew_ms": node.skew_ms,
                "seen_seconds_ago": _age(node.last_seen_at, now),
            }
            for node in nodes
        ],
    }


def _age(at: datetime, now: datetime) -> float:
    return round(max(0.0, (now - at).total_seconds()), 3)
