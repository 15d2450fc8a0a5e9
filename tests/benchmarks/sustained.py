"""Find the highest rate at which runs start in time, by trying one rate after another."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.figures import percentile
from tests.benchmarks.stage import say

# A rate is sustained when 95 % of its runs start within a second, and all have started soon after the last is due.
STARTED_WITHIN = 1.0
LAST_STARTS_WITHIN = 2.0
GROWTH = 1.5
# The search ends when the next rate to try is nearer than this to one that was sustained.
CLOSE_ENOUGH = 1.1


@dataclass
class Tried:
    per_second: int
    started: list[float]
    missing: int
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def p95(self) -> float:
        return percentile([*self.started, *[float("inf")] * self.missing], 95.0)

    @property
    def sustained(self) -> bool:
        return not self.missing and self.p95 <= STARTED_WITHIN

    def __str__(self) -> str:
        late = "late" if self.missing else f"p95 {self.p95 * 1000:.0f} ms"
        return f"{self.per_second} a second: {late}{'' if self.sustained else ', not sustained'}"


# Plans runs at a rate for so many seconds, and waits until all have ended.
Attempt = Callable[[int, float], Tried]


@dataclass(frozen=True)
class Search:
    """Where the search begins and ends, how long each rate is tried, and how long the one found is held."""

    first: int
    most: int
    step: float
    held: float


def find_sustained(attempt: Attempt, search: Search) -> Tried:
    # Whoever is asked for the first time is slow; the figures are of those who have worked before.
    attempt(search.first, min(5.0, search.step))
    rate = _highest(attempt, search)
    # What was sustained for a short while has to be sustained for a longer one.
    while not (lasting := say_tried(attempt(rate, search.held))).sustained:
        rate = int(rate / CLOSE_ENOUGH)
        assert rate, "not even one run a second starts in time on this machine"
    return lasting


def _highest(attempt: Attempt, search: Search) -> int:
    """Upwards by leaps until a rate is too high, then between that and the best one so far."""
    rate, best, too_high = search.first, 0, search.most + 1
    while best * CLOSE_ENOUGH < rate < too_high:
        if say_tried(attempt(rate, search.step)).sustained:
            best = rate
        else:
            too_high = rate
        leap = int(best * GROWTH)
        rate = leap if 0 < leap < too_high else int((best * too_high) ** 0.5) if best else too_high // 2
    return max(1, best)


def say_tried(tried: Tried) -> Tried:
    say(f"  {tried}")
    return tried
