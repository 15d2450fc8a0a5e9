"""Sums over what was measured."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that so many percent of all do not exceed."""
    ordered = sorted(values)
    place = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(place) - 1)]


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Of seconds: the percentiles every benchmark of lateness shows."""
    names = {"p50_ms": 50.0, "p99_ms": 99.0, "p999_ms": 99.9}
    return {name: round(percentile(values, percent) * 1000, 1) for name, percent in names.items()}


def shares(
    spans: Sequence[tuple[int, float, float]],
    with_work_until: dict[int, float],
    weights: dict[int, int],
    begin: float,
) -> dict[int, float]:
    """Of each tenant: what it had of all occupied slot-seconds while it had work, by what was its fair share.

    `spans` are (tenant, from, to) of each run that held a slot. A tenant has work from `begin` until the last of its
    runs has left the table of waiting ones; its share is by weight among those that have work at the time.
    """
    had = dict.fromkeys(with_work_until, 0.0)
    fair = dict.fromkeys(with_work_until, 0.0)
    edges = sorted({begin, *(end for end in with_work_until.values() if end > begin)})
    for start, end in pairwise(edges):
        working = [tenant for tenant, until in with_work_until.items() if until >= end]
        total_weight = sum(weights[tenant] for tenant in working)
        held = dict.fromkeys(with_work_until, 0.0)
        for tenant, since, until in spans:
            held[tenant] = held.get(tenant, 0.0) + max(0.0, min(until, end) - max(since, start))
        # What those without waiting work still run is nobody's to share out.
        shared = sum(held[tenant] for tenant in working)
        for tenant in working:
            had[tenant] += held[tenant]
            fair[tenant] += shared * weights[tenant] / total_weight
    return {tenant: had[tenant] / fair[tenant] for tenant in had if fair[tenant] > 0}


def described(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in figures.items())
