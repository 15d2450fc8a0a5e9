"""Decide how often an index is read from its beginning. Pure (decision 20).

While a transaction is held open, PostgreSQL keeps an index entry of each row that has moved on since then, and whoever
reads the index from its beginning reads them all. So most passes begin where the last one found the first row, and a
full look, which takes longer and longer, finds what has come before that.
"""

import math
from collections import deque
from dataclasses import dataclass, field

# No full look for so many times what one takes: they take a twentieth of the time.
PAUSE_PER_LOOK = 20
# What only a full look finds is found after this time at the latest.
MAX_PAUSE_SECONDS = 1.0
# A look that waited for something else is not taken for a slow one: the quickest of so many counts.
RECENT_LOOKS = 3


@dataclass(slots=True)
class FullLooks:
    looked_at: float = -math.inf
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_LOOKS))

    @property
    def seconds(self) -> float:
        return min(self.recent) if len(self.recent) == RECENT_LOOKS else 0.0

    def are_due(self, at: float) -> bool:
        """Return whether to look from the beginning, as also after a clock that was set back."""
        return not 0 <= at - self.looked_at < min(MAX_PAUSE_SECONDS, PAUSE_PER_LOOK * self.seconds)

    def note(self, at: float, seconds: float) -> None:
        self.looked_at = at
        self.recent.append(seconds)

    def add(self, seconds: float) -> None:
        """Add to what the last look took."""
        self.recent[-1] += seconds
