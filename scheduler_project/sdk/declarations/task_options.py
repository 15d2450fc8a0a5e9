"""Read what an existing Celery task says with Celery's own options. The guard never imports this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.app.task import Task

from ..retries import MAX_ATTEMPTS

# Seconds. A task's own limit is brought within what the platform takes; a job's own `timeout` is refused by the
# platform if it is not.
MIN_TIMEOUT, MAX_TIMEOUT = 1.0, 30 * 86_400.0


def policy_of_task(task: Any) -> dict[str, Any] | None:
    """Read a task's own retry options where they differ from Celery's defaults."""
    policy: dict[str, Any] = {}
    options: Mapping[str, Any] = getattr(task, "retry_kwargs", None) or {}
    most = options.get("max_retries", task.max_retries)
    if most != Task.max_retries:
        policy["max_attempts"] = MAX_ATTEMPTS if most is None else min(MAX_ATTEMPTS, max(1, int(most) + 1))
    if getattr(task, "autoretry_for", ()) and (factor := float(getattr(task, "retry_backoff", 0) or 0)):
        policy["base"] = max(1.0, factor)
        policy["cap"] = max(policy["base"], float(getattr(task, "retry_backoff_max", 600)))
        policy["jitter"] = "full" if getattr(task, "retry_jitter", True) else "none"
    return policy or None


def timeout_of_task(task: Any) -> float | None:
    """Read a task's own limit, the soft one before the hard one.

    Celery gives the app's limits to each task without one; those are not the task's own.
    """
    for option in ("soft_time_limit", "time_limit"):
        limit = getattr(task, option, None)
        if limit is not None and limit != task.app.conf[f"task_{option}"] and limit > 0:
            return min(MAX_TIMEOUT, max(MIN_TIMEOUT, float(limit)))
    return None
