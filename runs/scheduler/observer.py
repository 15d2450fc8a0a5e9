"""Keep what passes return: how many there were, how long they took, and what they counted.

The loops report each finished pass to observers. The scheduler's status and the log read it today; a metrics page reads
the totals from the status of each scheduler.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from django.db.models import TextChoices

logger = logging.getLogger(__name__)


class PassKind(TextChoices):
    TRIGGER = "trigger"
    CATCH_UP = "catch_up"
    DISPATCH = "dispatch"
    RECOVERY = "recovery"


class PassResult(Protocol):
    def counts(self) -> Mapping[str, int]:
        """Return how many rows of each kind the pass wrote, by the names that status and metrics show."""


class FinishedPass(NamedTuple):
    kind: PassKind
    counts: Mapping[str, int]
    seconds: float


PassObserver = Callable[[FinishedPass], None]


@dataclass(slots=True)
class Totals:
    passes: int = 0
    seconds: float = 0.0
    longest_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, finished: FinishedPass) -> None:
        self.passes += 1
        self.seconds += finished.seconds
        self.longest_seconds = max(self.longest_seconds, finished.seconds)
        self.counts.update(finished.counts)

    def as_json(self) -> dict[str, Any]:
        return {
            "passes": self.passes,
            "seconds": round(self.seconds, 3),
            "longest_seconds": round(self.longest_seconds, 3),
            "counts": dict(self.counts),
        }


class PassTotals:
    """The totals of one scheduler since it started, by kind of pass."""

    def __init__(self) -> None:
        # Each loop adds from its own thread, and the status is written from another one.
        self._lock = threading.Lock()
        self._totals: dict[PassKind, Totals] = {}

    def __call__(self, finished: FinishedPass) -> None:
        with self._lock:
            self._totals.setdefault(finished.kind, Totals()).add(finished)

    def as_json(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            return {kind.value: totals.as_json() for kind, totals in self._totals.items()}


def log_pass(finished: FinishedPass) -> None:
    if logger.isEnabledFor(logging.DEBUG) and any(finished.counts.values()):
        counts = " ".join(f"{name}={count}" for name, count in finished.counts.items() if count)
        logger.debug("%s pass: %s in %.0f ms", finished.kind.value, counts, 1000 * finished.seconds)
