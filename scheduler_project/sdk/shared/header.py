"""The head of the slot table: the state of a worker as a whole, in the memory that it shares with its guard.

The guard writes the incarnation, the fence, the counters of responses and beats, and when it last looked; the parent
writes draining, stopping and when wake-ups last reached it; the process that starts a feed writes its pid, and that
feed when its loop last turned.
"""

from __future__ import annotations

import ctypes
import os
import time
from uuid import UUID

from ..process import processes
from .record import Process, shared_record

NIL = UUID(int=0)
# How often a reader tries to read words that another process may be writing.
READ_TRIES = 50
# The worker's event loop notes five times a second that wake-ups reach it; a loop that stands still does not.
HEARING_SECONDS = 3.0


@shared_record
class WorkerHeader(ctypes.Structure):
    """All instants are in boot time; 0 means never."""

    __slots__ = ()

    magic: int
    slots: int
    # Odd while the incarnation is written.
    sequence: int
    _incarnation: UUID
    # From here on nothing may be claimed, and what runs is killed.
    fence_at: float
    # Counts the responses to heartbeats: each is acted on once.
    responses: int
    drain_until: float
    stopping: int
    parent: Process
    guard: Process
    beats: int
    # When the guard last looked at the slots.
    ticked_at: float
    # When the worker's event loop last looked for wake-ups.
    looped_at: float
    # The feed that is to work; 0: none.
    feed_pid: int
    feed_turned_at: float
    # Changes whenever a child has done runs; two that count at the same moment may count as one.
    runs_counted: int
    # When the worker's event loop last had a consumer of wake-ups.
    heard_at: float

    @property
    def incarnation(self) -> UUID:
        """Return the incarnation that may claim, or NIL while there is none or it is being changed."""
        for _attempt in range(READ_TRIES):
            # The number is read before and after the two words: a guard that writes in between changes it, so no
            # child claims for an identity made of the halves of two incarnations.
            before = self.sequence
            value = self._incarnation
            if not before & 1 and before == self.sequence:
                return value
            time.sleep(0.0002)
        return NIL

    @incarnation.setter
    def incarnation(self, value: UUID) -> None:
        # Odd first and even last. The number may be odd already, left so by a guard that died in between: `|=`
        # keeps it odd, where adding 1 would call a half-written value whole.
        self.sequence |= 1
        self._incarnation = value
        self.sequence += 1

    @property
    def fenced(self) -> bool:
        return processes.boottime() >= self.fence_at

    @property
    def hears_wakeups(self) -> bool:
        return processes.boottime() - self.heard_at < HEARING_SECONDS

    @property
    def draining(self) -> bool:
        return self.drain_until > 0.0

    def start_feed(self, pid: int) -> None:
        """Name the feed that is to work from now on; 0: none."""
        # Before the pid: the sign of life of the feed before must not pass for one of the new feed.
        self.feed_turned_at = 0.0
        self.feed_pid = pid

    def note_feed_turn(self) -> None:
        """Record a turn of this process' loop, unless another feed has taken its place and it only woke up."""
        if self.feed_pid == os.getpid():
            self.feed_turned_at = processes.boottime()
