"""Hold a fair share of the slices of a kind, by locks of one database session."""

import random
from collections.abc import Collection, Iterable

from runs.scheduler.partitions.lock_session import LockSession


class SliceSet:
    """The slices of one kind that a session holds, kept at its fair share of the universe."""

    def __init__(self, session: LockSession, kind: int, universe: Iterable[int]) -> None:
        self.session = session
        self.kind = kind
        self.universe = set(universe)
        self.held: set[int] = set()
        session.join(kind)

    def balance(self) -> None:
        """Give back what is above the fair share or gone, then take free slices up to it."""
        fair = -(-len(self.universe) // max(1, self.session.members(self.kind)))
        gone = self.held - self.universe
        surplus = gone.union(self._any_of(self.held - gone)[fair:])
        if surplus:
            self.session.give_back(self.kind, surplus)
            self.held -= surplus
        free = self.universe - self.held
        if free and len(self.held) < fair:
            self.held |= self.session.take(self.kind, self._any_of(free), fair - len(self.held))

    def _any_of(self, keys: Collection[int]) -> list[int]:
        """Return keys in random order, so that two schedulers do not go for the same slices."""
        return random.sample(sorted(keys), len(keys))
