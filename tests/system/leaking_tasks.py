"""Tasks that leak everything they are given, in every way a careless task does."""

import base64
import hashlib
import logging
import sys
from typing import Any
from urllib.parse import quote_plus

from tests.support.sample_tasks import app, keeper

__all__ = ["app", "keeper"]


def digest(text: str) -> str:
    """Return what shows that a body had the very value, without showing it."""
    return hashlib.sha256(text.encode()).hexdigest()


@app.task(name="tests.leaks", bind=True)
def leaks(self: Any, key: str, raising: bool = False, again: float | None = None) -> dict[str, Any]:
    print("had", digest(key), flush=True)  # noqa: T201
    print("key:", key, flush=True)  # noqa: T201
    print(f"Basic {base64.b64encode(f'user:{key}'.encode()).decode()}", file=sys.stderr)  # noqa: T201
    sys.stdout.write(key[:7])
    sys.stdout.write(key[7:] + "\n")
    logging.getLogger("leaking").warning("GET /?key=%s", quote_plus(key), extra={"given": {"key": key}})
    if again is not None and not self.request.retries:
        raise self.retry(
            kwargs={"key": key, "again": again, "raising": raising}, exc=ValueError(key), countdown=again
        )
    if raising:
        raise ValueError(f"nobody takes {key!r}")
    return {"digest": digest(key), "given": [key], "request": repr(self.request.kwargs)}
