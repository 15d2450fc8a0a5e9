"""A child process started without a fork of ours.

`subprocess` learns from the end of a pipe that its child began. A pool that forks at that moment passes the pipe to one
of its own children, which never closes it: the thread that started the child would wait for as long as that one lives.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

POLL_SECONDS = 0.05
# Python ignores these; a new program should not inherit that.
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)


class SpawnedProcess:
    """A child in a session of its own that reads nothing."""

    def __init__(self, command: list[str], env: Mapping[str, str]) -> None:
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        self.pid = os.posix_spawn(
            command[0], command, env, file_actions=[nothing], setsid=True, setsigdef=RESTORED
        )
        self.ended_with: int | None = None

    def is_alive(self) -> bool:
        if self.ended_with is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # Another thread of this process waited for any child, and it was this one.
                self.ended_with = 0
            else:
                self.ended_with = os.waitstatus_to_exitcode(status) if pid else None
        return self.ended_with is None

    def wait(self, seconds: float) -> bool:
        """Wait for the end; return whether it came."""
        until = time.monotonic() + seconds
        while self.is_alive() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return self.ended_with is not None

    def kill(self) -> None:
        # Looked at first: a child that was waited for has no pid any more, and its number may be another's.
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
