"""Wake a thread that waits for sockets."""

import socket
from contextlib import suppress

CHUNK = 4096


class WakeSocket:
    """A socket that becomes readable when another thread wakes it."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()
        self._here.setblocking(False)
        self._there.setblocking(False)

    def fileno(self) -> int:
        return self._here.fileno()

    def wake(self) -> None:
        with suppress(BlockingIOError):  # it is full of bytes that nobody has read yet
            self._there.send(b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self._here.recv(CHUNK)
