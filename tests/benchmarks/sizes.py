"""Read the size of a measurement from environment variables; docs/contributing/benchmarks.md lists them."""

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)


class BadSize(Exception):
    """A variable of a benchmark cannot be used."""


def whole(name: str, default: int, least: int = 1) -> int:
    return _number(int, name, default, least)


def number(name: str, default: float, least: float = 0.0) -> float:
    return _number(float, name, default, least)


def slots() -> int:
    """Of one real worker."""
    return whole("SLOTS", 8)


def _number(kind: Callable[[str], T], name: str, default: T, least: T) -> T:
    text = os.environ.get(name, "").strip().replace("_", "")
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or value < least:
        raise BadSize(f"{name}={text!r} is of no use here: a number from {least} on, such as {default}")
    return value
