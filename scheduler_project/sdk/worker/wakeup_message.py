"""The form of a wake-up. A message of any other form is put aside unread.

In a Celery worker it could crash a child, or run a task that nobody requested there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from .wakeup_task import NAME, QUEUE_HEADER, queue_named

logger = logging.getLogger(__name__)

CONTENT = ("application/json", "utf-8")
# As schedulers write it; a body that is written otherwise is parsed.
PLAIN_BODY = b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
# All that Celery needs of a task. Other headers might end the child that reads them.
REQUIRED_HEADERS = ("task", "id", QUEUE_HEADER)
# With one of these Celery would keep the message for a while, or drop it.
TIMED_HEADERS = ("eta", "expires")


def problem_with(message: Any) -> str:
    """Return why this is not a wake-up, without showing what it holds; empty if it is one."""
    headers = message.headers
    if not isinstance(headers, dict) or headers.get("task") != NAME:
        return "it names another task, or none"
    if not isinstance(headers.get("id"), str) or not headers["id"]:
        return "it has no id"
    if queue_named(headers.get(QUEUE_HEADER)) is None:
        return "it names no queue"
    if any(headers.get(name) is not None for name in TIMED_HEADERS):
        return "it has an eta, or expires"
    if not _is_time_limit(headers.get("timelimit")):
        return "its time limit is no pair"
    if (message.content_type, message.content_encoding) != CONTENT:
        return "it says no content type and encoding, or others"
    return "" if _is_plain(message.body) else "its body is not that of a wake-up"


def required_headers(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: headers[name] for name in REQUIRED_HEADERS}


def _is_time_limit(value: Any) -> bool:
    if value is None:
        return True
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    return pair and all(limit is None or isinstance(limit, (int, float)) for limit in value)


def _is_plain(body: Any) -> bool:
    """Return whether the body holds no arguments, and no tasks to follow."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    if data == PLAIN_BODY:
        return True
    try:
        args, kwargs, embed = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return False
    return args == [] and kwargs == {} and isinstance(embed, dict) and not any(embed.values())


def put_aside(message: Any, why: str) -> None:
    """Reject a message: the broker moves it to the queue of dead messages, for a person to look at."""
    broker_queue = (message.delivery_info or {}).get("routing_key", "")
    logger.warning("Wake-ups: a message in %s cannot be read and is put aside: %s", broker_queue, why)
    _answer(message, partial(message.reject, requeue=False))


def ack(message: Any) -> None:
    """Ack a wake-up; one that cannot be acked comes again, finds no run and is acked then."""
    _answer(message, message.ack)


def _answer(message: Any, answer: Callable[[], Any]) -> None:
    try:
        if not message.acknowledged:
            answer()
    except Exception:
        logger.debug("Wake-ups: a message could not be acked or rejected", exc_info=True)
