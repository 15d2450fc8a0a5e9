"""Permits handed to a feed's children: a named pipe in the worker's folder, where one child reads each.

What is lost here, because a child died between reading and claiming, the next heartbeat names again.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from pathlib import Path

from .ledger import Lane

# One permit: pool and tenant of its lane. So little is written and read whole or not at all.
RECORD = struct.Struct("=qq")
PIPE = "permits"


class Doorbell:
    def __init__(self, folder: Path) -> None:
        # For both ends, so that opening never waits for the other one and a pipe without readers keeps its records.
        self._pipe = os.open(folder / PIPE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll: select.epoll | None = None
        self._pid = 0

    @staticmethod
    def create(folder: Path) -> None:
        os.mkfifo(folder / PIPE, 0o600)

    def ring(self, lane: Lane) -> bool:
        """False: nobody has read for long, and the pipe is full."""
        try:
            os.write(self._pipe, RECORD.pack(lane.pool_id, lane.tenant_id))
        except BlockingIOError:
            return False
        return True

    def unread(self) -> int:
        answer = fcntl.ioctl(self._pipe, termios.FIONREAD, struct.pack("=i", 0))
        return int(struct.unpack("=i", answer)[0]) // RECORD.size

    def wait(self, seconds: float) -> Lane | None:
        """The lane of the next permit, of which no other process hears; None: there was none for so long."""
        if not self._polled().poll(seconds):
            return None
        try:
            pool_id, tenant_id = RECORD.unpack(os.read(self._pipe, RECORD.size))
        except BlockingIOError:
            return None
        return Lane(id=0, pool_id=pool_id, tenant_id=tenant_id, queue="")

    def _polled(self) -> select.epoll:
        """Of this process alone: the kernel then wakes one of those who wait, not all."""
        if self._poll is None or self._pid != os.getpid():
            self._poll, self._pid = select.epoll(), os.getpid()
            self._poll.register(self._pipe, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        return self._poll

    def close(self) -> None:
        os.close(self._pipe)
