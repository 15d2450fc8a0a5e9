"""Read the answer of an HTTP target: what is kept of it, whether it is a success, and when to try again."""

import json
import math
import zlib
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from scheduler_project.sdk.outcomes import PERMANENT, TRANSIENT
from scheduler_project.sdk.targets.registry import TargetCall, TargetFailed

LOGGED_BODY = 10_000
# A JSON answer up to this size is kept as the run's result.
KEPT_ANSWER = 2_000
TRIED_AGAIN = (408, 425, 429)
AUTO_DETECTED = zlib.MAX_WBITS | 32


def judge(answer: httpx.Response, expected: Iterable[int] | None, most_redirects: int) -> None:
    status = answer.status_code
    if status in expected if expected else 200 <= status < 300:
        return
    again = status in TRIED_AGAIN or status >= 500
    line = f"The target answered {status} {answer.reason_phrase}".strip()
    if answer.has_redirect_location:
        line += f"; it redirects more than {most_redirects} times" if most_redirects else ""
        line += "" if most_redirects else "; redirects are not followed"
    wait = retry_after(answer.headers.get("retry-after")) if again else None
    raise TargetFailed(TRANSIENT if again else PERMANENT, f"HTTP {status}", line, retry_after=wait)


def result_of(answer: httpx.Response, text: str, attempt: TargetCall) -> dict[str, Any]:
    """Return the result, with a small JSON answer; anything else is in the log."""
    result: dict[str, Any] = {"status": answer.status_code}
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(text) <= KEPT_ANSWER and (kind == "application/json" or kind.endswith("+json")):
        with suppress(ValueError, RecursionError):
            result["answer"] = json.loads(attempt.log.masked(text))
    return result


def beginning_of(response: httpx.Response) -> str:
    """Read as much of the answer as is kept.

    The status has come, and it alone says whether the call succeeded: a body that breaks off or is badly encoded must
    not have the call made again.
    """
    read, note = b"", ""
    try:
        for chunk in response.iter_raw():
            read += chunk
            if len(read) >= LOGGED_BODY:
                break
    except httpx.HTTPError as error:
        note = f"\nThe answer broke off: {type(error).__name__}"
    body = unpacked(read[:LOGGED_BODY], response)
    try:
        return body.decode(response.charset_encoding or "utf-8", "replace") + note
    except (LookupError, ValueError):
        return body.decode("utf-8", "replace") + note


def unpacked(data: bytes, response: httpx.Response) -> bytes:
    """Unpack no more than is kept: a few bytes may unpack to gigabytes."""
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing in ("gzip", "x-gzip", "deflate"):
        try:
            return zlib.decompressobj(AUTO_DETECTED).decompress(data, LOGGED_BODY)
        except zlib.error:
            return f"{len(data)} bytes that are not {packing}".encode()
    return data


def retry_after(value: str | None) -> float | None:
    """Return the seconds to wait, from seconds or a date; None for anything else, or a number too large."""
    if not value:
        return None
    if value.strip().isdecimal():
        seconds = float(value)
        return seconds if math.isfinite(seconds) else None
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    return max(0.0, (at - datetime.now(timezone.utc)).total_seconds())
