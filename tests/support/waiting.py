"""Tests wait for a condition, never for a time."""

import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import TypeVar

import pytest

T = TypeVar("T")


def wait_until(
    predicate: Callable[[], T | None], timeout: float = 30, what: str = "", *, interval: float = 0.05
) -> T:
    """Return the first truthy answer of the predicate; fail the test when none came in time."""
    end = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        if time.monotonic() > end:
            pytest.fail(f"waited {timeout:g} s in vain for {what or 'a condition'}; last seen: {answer!r}")
        time.sleep(interval)


def join(one: Thread | BaseProcess, timeout: float = 90) -> None:
    """Until it has ended; the test fails when it does not."""
    one.join(timeout)
    if one.is_alive():
        pytest.fail(f"waited {timeout:g} s in vain for the end of {one.name}")
