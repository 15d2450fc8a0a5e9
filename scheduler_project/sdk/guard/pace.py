"""How long a worker pauses between two beats, and the lease that a beat announces.

An idle worker that hears wake-ups is silent for as long as the answer to its last beat allows. It announces the longer
lease with the beat before the silence, and beats at once when it is idle no more.
"""

from __future__ import annotations

import random
import time

from ..ledger.interface import MAX_IDLE_LEASE, HeartbeatResponse
from ..shared.folder import Config
from .held_claims import HeldClaims

# Pauses between beats, in seconds.
WHEN_WOKEN = 0.2
WITH_WORK = 0.5
# Without wake-ups children learn of work from the responses alone.
FEEDING = 0.1


class Pace:
    def __init__(self, config: Config) -> None:
        self._config = config
        self._look = min(config.look, config.beat)
        # A lease at most doubles, so each idle worker is heard within the lease of a busy one: recovery counts on it.
        self._max_quiet = min(config.lease, MAX_IDLE_LEASE - config.lease)
        self._allowed = 0.0
        self._changed_at = time.monotonic()
        self._is_quiet = self._was_quiet = self._work = False
        # The tasks of the host in slots, as the last beat reported them.
        self.foreign = 0
        # Nothing has changed for the time between two beats of a busy worker.
        self.idle = False
        # For how long the worker is silent after this beat; 0: it keeps its usual pace.
        self.quiet = 0.0

    @property
    def lease(self) -> float:
        """The lease that the beat announces."""
        return self._config.lease + self.quiet

    def begin(self, held: HeldClaims, hears_wakeups: bool) -> None:
        """Decide before a beat whether it is that of an idle worker."""
        is_still = not self._work and not held.tokens and not held.busy and held.foreign == self.foreign
        if not is_still or not hears_wakeups or held.foreign >= self._config.slots:
            self._changed_at = time.monotonic()
        self.foreign = held.foreign
        self.idle = time.monotonic() - self._changed_at >= self._config.beat
        self.quiet = self._allowed if self.idle and self._allowed > self._look else 0.0
        self._was_quiet, self._is_quiet = self._is_quiet, False

    def confirmed_lease(self, response: HeartbeatResponse) -> float:
        """Return the lease that holds after the answer: a platform of an earlier version ignores what is announced."""
        if response.quiet is None:
            self.quiet = 0.0
        return self.lease

    def pause_after(self, response: HeartbeatResponse, held: HeldClaims, feeding: bool) -> float:
        config = self._config
        self._work = work = bool(response.work)
        self._allowed = min(response.quiet or 0.0, self._max_quiet)
        has_room = held.busy + held.foreign < config.slots
        if feeding and (work or held.busy):
            return FEEDING
        if work or (config.without_wakeups and has_room):
            return min(WITH_WORK, config.beat)
        if self.quiet:
            self._is_quiet = True
            # The first silence ends at a random time: workers that became idle together then look one by one.
            return self.quiet * (1.0 if self._was_quiet else random.random())  # noqa: S311 - no secret
        return self._look if has_room else config.beat
