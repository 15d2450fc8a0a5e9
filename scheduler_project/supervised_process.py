"""One child process: started, watched, started again when it dies, stopped within a time limit."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

PR_SET_PDEATHSIG = 1
LONGEST_PAUSE_SECONDS = 30.0
# A child that lived this long did not fail for the reason it failed for before.
SETTLED_SECONDS = 60.0
LOG_KEPT_BYTES = 10 * 1024 * 1024

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent(signal_number: int) -> Callable[[], None]:
    """For `preexec_fn`: the system sends this signal when the parent dies, even by SIGKILL (Linux only)."""
    parent = os.getpid()

    def ask() -> None:
        if _libc is None:
            return
        _libc.prctl(PR_SET_PDEATHSIG, signal_number)
        # The parent may have died between the fork and the request.
        if os.getppid() != parent:
            os.kill(os.getpid(), signal_number)

    return ask


def begin(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: BinaryIO,
    ended_by: int = signal.SIGTERM,
    **more: Any,
) -> subprocess.Popen[bytes]:
    """It dies with us, by that signal."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C at the terminal reaches the supervisor alone, which stops in order.
        start_new_session=True,
        preexec_fn=die_with_parent(ended_by),
        **more,
    )


def last_lines(path: Path, count: int = 12) -> str:
    if not path.exists():
        return ""
    return "\n".join(path.read_text(errors="replace").splitlines()[-count:])


class SupervisedProcess:
    def __init__(
        self, name: str, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self.command = list(command)
        self.cwd = cwd
        self.env = dict(env)
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_again_at: float | None = None
        self._pause = 1.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_KEPT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as output:
            self._process = begin(self.command, cwd=self.cwd, env=self.env, output=output)
        self._started_at = time.monotonic()
        self._start_again_at = None

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def keep_alive(self) -> str | None:
        """Start it again when it is dead and its pause is over; a sentence when it just died."""
        if self.is_alive() or self._process is None:
            return None
        now = time.monotonic()
        if self._start_again_at is None:
            if now - self._started_at > SETTLED_SECONDS:
                self._pause = 1.0
            pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE_SECONDS)
            self._start_again_at = now + pause
            self.kill()
            ending = _ending(self._process.returncode)
            return f"{self.name} {ending}; starting it again in {pause:.0f} s (its log: {self.log})"
        if now >= self._start_again_at:
            self.start()
        return None

    def ask_to_stop(self) -> None:
        if self.is_alive() and self._process:
            self._process.terminate()

    def wait_stopped(self, seconds: float) -> None:
        """What has not ended by then is killed, with everything else in its process group."""
        if self._process is None:
            return
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        """With everything in its process group."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass


def _ending(returncode: int | None) -> str:
    if returncode is not None and returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"
