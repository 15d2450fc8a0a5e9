"""The head of the slot table: what concerns a worker as a whole, in the memory it shares with its guard.

The guard writes incarnation, fence, answer and beat; the parent draining and stopping; whoever starts a feed its pid,
and that feed when its loop last turned.
"""

from __future__ import annotations

import os
import time
from uuid import UUID

from . import processes

NOBODY = UUID(int=0)
# Of a word that somebody may be writing.
READ_TRIES = 50

# Words of 8 bytes.
(
    H_MAGIC,
    H_SLOTS,
    H_SEQUENCE,
    H_INCARNATION,
    _,
    H_FENCE_AT,
    H_ANSWER,
    H_DRAIN_UNTIL,
    H_STOPPING,
    H_PARENT,
    H_PARENT_STARTED,
    H_GUARD,
    H_GUARD_STARTED,
    H_BEAT,
    H_TICKED_AT,
    H_LOOPED_AT,
    H_FEED,
    H_FEED_TURNED_AT,
    H_RUNS_COUNTED,
) = range(19)


class WorkerHeader:
    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")
        self._floats = memory.cast("d")

    @property
    def incarnation(self) -> UUID:
        for _attempt in range(READ_TRIES):
            before = self._words[H_SEQUENCE]
            value = self._uuid(H_INCARNATION)
            if not before & 1 and before == self._words[H_SEQUENCE]:
                return value
            time.sleep(0.0002)
        return NOBODY

    @incarnation.setter
    def incarnation(self, value: UUID) -> None:
        self._words[H_SEQUENCE] |= 1
        self._put_uuid(H_INCARNATION, value)
        self._words[H_SEQUENCE] += 1

    @property
    def fence_at(self) -> float:
        return self._floats[H_FENCE_AT]

    @fence_at.setter
    def fence_at(self, value: float) -> None:
        self._floats[H_FENCE_AT] = value

    @property
    def fenced(self) -> bool:
        return processes.boottime() >= self._floats[H_FENCE_AT]

    @property
    def runs_counted(self) -> int:
        """Moves whenever a child has done runs; two that count at once may be one."""
        return self._words[H_RUNS_COUNTED]

    def count_runs(self, done: int) -> None:
        self._words[H_RUNS_COUNTED] += done

    @property
    def answer(self) -> int:
        return self._words[H_ANSWER]

    def answered(self) -> None:
        self._words[H_ANSWER] += 1

    @property
    def beat(self) -> int:
        return self._words[H_BEAT]

    def next_beat(self) -> int:
        self._words[H_BEAT] += 1
        return self._words[H_BEAT]

    @property
    def ticked_at(self) -> float:
        """When the guard last looked; boot time."""
        return self._floats[H_TICKED_AT]

    def ticked(self) -> None:
        self._floats[H_TICKED_AT] = processes.boottime()

    @property
    def looped_at(self) -> float:
        """When the worker's event loop last looked for permits; boot time, 0: it never did."""
        return self._floats[H_LOOPED_AT]

    def looped(self) -> None:
        self._floats[H_LOOPED_AT] = processes.boottime()

    @property
    def feed(self) -> int:
        """The pid of the feed that is to work; 0: none, or nobody said."""
        return self._words[H_FEED]

    @feed.setter
    def feed(self, pid: int) -> None:
        self._floats[H_FEED_TURNED_AT] = 0.0
        self._words[H_FEED] = pid

    @property
    def feed_turned_at(self) -> float:
        """When the feed's loop last turned; boot time, 0: it has not begun."""
        return self._floats[H_FEED_TURNED_AT]

    def feed_turned(self) -> None:
        """One that was replaced and wakes says nothing for the other."""
        if self.feed == os.getpid():
            self._floats[H_FEED_TURNED_AT] = processes.boottime()

    @property
    def draining(self) -> bool:
        return self._floats[H_DRAIN_UNTIL] > 0.0

    @property
    def drain_until(self) -> float:
        return self._floats[H_DRAIN_UNTIL]

    def drain(self, until: float) -> None:
        self._floats[H_DRAIN_UNTIL] = until

    @property
    def stopping(self) -> bool:
        return bool(self._words[H_STOPPING])

    def stop(self) -> None:
        self._words[H_STOPPING] = 1

    @property
    def parent(self) -> tuple[int, int]:
        return self._words[H_PARENT], self._words[H_PARENT_STARTED]

    @parent.setter
    def parent(self, pid: int) -> None:
        # The pid last: whoever reads it reads its start time too.
        self._words[H_PARENT_STARTED] = processes.started(pid)
        self._words[H_PARENT] = pid

    @property
    def guard(self) -> tuple[int, int]:
        return self._words[H_GUARD], self._words[H_GUARD_STARTED]

    @guard.setter
    def guard(self, pid: int) -> None:
        self._words[H_GUARD], self._words[H_GUARD_STARTED] = pid, processes.started(pid)

    def _uuid(self, word: int) -> UUID:
        return UUID(int=(self._words[word] << 64) | self._words[word + 1])

    def _put_uuid(self, word: int, value: UUID) -> None:
        self._words[word] = value.int >> 64
        self._words[word + 1] = value.int & 0xFFFFFFFFFFFFFFFF
