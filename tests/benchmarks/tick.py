"""The body that all sides of a comparison run: a pause, lines, and one byte in a file, by which it is counted."""

import logging
import os
import time
from functools import cache

logger = logging.getLogger(__name__)


def tick(seconds: float, lines: int = 0) -> None:
    if seconds:
        time.sleep(seconds)
    for number in range(lines):
        logger.warning("line %d of %d, as long as lines of a log usually are", number, lines)
    os.write(_counter(os.environ["BENCH_COUNTER"]), b".")


@cache
def _counter(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
