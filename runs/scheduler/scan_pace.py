"""Decide how often an index is read from its beginning. Pure (decision 20).

While a transaction is held open, PostgreSQL keeps an index entry of each version of a row that was replaced since; a
scan from the beginning reads them all. So most passes begin where the last one found the first row. What has come
before that is found by a scan from the beginning, now and then.
"""

import math
from collections import deque
from dataclasses import dataclass, field

# After a scan, none for 20 times what it took: so scans take a twentieth of the time.
PAUSE_PER_SCAN = 20
# What only a scan from the beginning finds is found after this time at the latest, or after what a scan takes.
MAX_PAUSE_SECONDS = 1.0
# A scan that takes no longer than this may be made in each pass.
QUICK_SECONDS = 0.005
# A scan's time is the least of the last three, so one that waited for a lock makes no pause.
RECENT_SCANS = 3


@dataclass(slots=True)
class ScanPace:
    """Say when a scan that may be slow is due again."""

    scanned_at: float = -math.inf
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_SCANS))

    @property
    def seconds(self) -> float:
        return min(self.recent) if len(self.recent) == RECENT_SCANS else 0.0

    def is_due(self, at: float) -> bool:
        """Return whether to scan now, as also after a clock that was set back."""
        most = max(MAX_PAUSE_SECONDS, self.seconds)
        return not 0 <= at - self.scanned_at < min(most, PAUSE_PER_SCAN * self.seconds)

    def note(self, at: float, seconds: float) -> None:
        """Note a scan that ended at this instant, or was cut off then."""
        self.scanned_at = at
        self.recent.append(seconds)

    def add(self, seconds: float) -> None:
        """Add to what the last scan took."""
        self.recent[-1] += seconds
