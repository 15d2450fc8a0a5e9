"""The pipe of wake-ups to a feed's children: a named pipe in the worker's folder, where one child reads each.

A wake-up is lost when a child dies between reading and claiming; the next heartbeat names its queue again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
from pathlib import Path

from ..ledger.interface import WorkQueue

# One wake-up: pool and tenant of its queue. A pipe writes and reads so little whole or not at all.
RECORD = struct.Struct("=qq")
PIPE = "wakeups"


class WakePipe:
    def __init__(self, folder: Path) -> None:
        # Opened for both ends, so that opening never waits for the other one and a pipe without readers keeps its
        # records.
        self._pipe = os.open(folder / PIPE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll: select.epoll | None = None
        self._pid = 0

    @staticmethod
    def create(folder: Path) -> None:
        os.mkfifo(folder / PIPE, 0o600)

    def wake(self, queue: WorkQueue) -> bool:
        """Wake one child; return False if the pipe is full because no child reads."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._pipe, RECORD.pack(queue.pool_id, queue.tenant_id))
            return True
        return False

    def unread(self) -> int:
        size = fcntl.ioctl(self._pipe, termios.FIONREAD, struct.pack("=i", 0))
        return int(struct.unpack("=i", size)[0]) // RECORD.size

    def wait(self, seconds: float) -> WorkQueue | None:
        """Return the queue of the next wake-up, which no other process gets; None if there was none for so long."""
        # A poll of its own for each process: the kernel wakes one of them, not all.
        if self._poll is None or self._pid != os.getpid():
            self._poll, self._pid = select.epoll(), os.getpid()
            self._poll.register(self._pipe, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        if not self._poll.poll(seconds):
            return None
        try:
            pool_id, tenant_id = RECORD.unpack(os.read(self._pipe, RECORD.size))
        except BlockingIOError:
            # Another child was woken too, and read first.
            return None
        return WorkQueue(id=0, pool_id=pool_id, tenant_id=tenant_id, broker_queue="")
