"""What a permit looks like. Anything else in a lane's queue would crash a Celery worker, or do there what nobody asked
for: it is put aside unread."""

from __future__ import annotations

import json
from typing import Any

from .permit_task import LANE_HEADER, NAME, lane_named

CONTENT = ("application/json", "utf-8")
# As schedulers write it; one that is written otherwise is read.
PLAIN_BODY = b'[[], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
# All that Celery needs of a task. What else came along might end the child that reads it.
NEEDED = ("task", "id", LANE_HEADER)
# Celery would keep the message for a while, or drop it.
UNTIMED = ("eta", "expires")


def wrong_with(message: Any) -> str:
    """Nothing: it is a permit. What is said of it shows nothing of what it holds."""
    headers = message.headers
    if not isinstance(headers, dict) or headers.get("task") != NAME:
        return "it names another task, or none"
    if not isinstance(headers.get("id"), str) or not headers["id"]:
        return "it has no id"
    if lane_named(headers.get(LANE_HEADER)) is None:
        return "it names no lane"
    if any(headers.get(name) is not None for name in UNTIMED):
        return "it has an eta, or expires"
    if not _is_time_limit(headers.get("timelimit")):
        return "its time limit is no pair"
    if (message.content_type, message.content_encoding) != CONTENT:
        return "it says no content type and encoding, or others"
    return "" if _is_plain(message.body) else "its body is not that of a permit"


def needed(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: headers[name] for name in NEEDED}


def _is_time_limit(value: Any) -> bool:
    if value is None:
        return True
    pair = isinstance(value, (list, tuple)) and len(value) == 2
    return pair and all(limit is None or isinstance(limit, (int, float)) for limit in value)


def _is_plain(body: Any) -> bool:
    """No arguments, and nothing that is to follow."""
    data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body)
    if data == PLAIN_BODY:
        return True
    try:
        args, kwargs, embed = json.loads(data)
    except (ValueError, TypeError, RecursionError):
        return False
    return args == [] and kwargs == {} and isinstance(embed, dict) and not any(embed.values())
