"""Read the BEATKEEPER_… variables of a code base and its workers."""

from __future__ import annotations

import os

# Default, minimum and maximum of each time in seconds.
SECONDS = {
    "DRAIN_SECONDS": (20.0, 0.0, 3600.0),
    "FEED_AFTER_SECONDS": (1.0, 0.0, 60.0),
    "LOOK_SECONDS": (0.8, 0.2, 600.0),
    # Recovery takes a run back a minute after its time limit; by then the guard must have ended the body.
    "GRACE_SECONDS": (5.0, 0.0, 30.0),
    # A body that has to end itself, because the guard cannot end it, needs a margin of a second.
    "FENCE_MARGIN_SECONDS": (5.0, 1.0, 600.0),
    "LEASE_SECONDS": (30.0, 2.0, 3600.0),
    "BEAT_SECONDS": (5.0, 0.2, 600.0),
    "REQUEST_SECONDS": (5.0, 0.1, 300.0),
}


def variable(name: str, default: str = "") -> str:
    return os.environ.get(f"BEATKEEPER_{name}", "").strip() or default


def seconds(name: str, given: float | None = None) -> float:
    """Return the time that the code or the environment gives, or its default; refuse one out of range."""
    default, smallest, largest = SECONDS[name]
    value = str(given) if given is not None else variable(name, str(default))
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"BEATKEEPER_{name}={value!r} is not a number of seconds") from None
    # NaN is in no range.
    if not smallest <= number <= largest:
        raise ValueError(f"BEATKEEPER_{name}={number:g} is outside {smallest:g} to {largest:g}")
    return number
