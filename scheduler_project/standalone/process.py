"""Supervise a child process: start it, restart it when it dies, stop it within a time limit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from scheduler_project.sdk.process.processes import die_with_parent

MAX_PAUSE_SECONDS = 30.0
# A child that lived this long did not fail for the reason it failed for before.
SETTLED_SECONDS = 60.0
LOG_KEPT_BYTES = 10 * 1024 * 1024


def begin(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    output: BinaryIO,
    ended_by: signal.Signals = signal.SIGTERM,
    **more: Any,
) -> subprocess.Popen[bytes]:
    """Start a process that the system ends by a signal when we die."""
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C at the terminal reaches the supervisor alone, which stops in order.
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid(), ended_by),
        **more,
    )


def last_lines(path: Path, count: int = 12) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    return "\n".join(text.splitlines()[-count:])


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


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
        """Restart the process when it is dead and its pause is over; return a sentence when it has just died."""
        if self.is_alive() or self._process is None:
            return None
        now = time.monotonic()
        if self._start_again_at is None:
            if now - self._started_at > SETTLED_SECONDS:
                self._pause = 1.0
            pause, self._pause = self._pause, min(self._pause * 2, MAX_PAUSE_SECONDS)
            self._start_again_at = now + pause
            self.kill()
            code = self._process.returncode
            ending = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            return f"{self.name} {ending}; starting it again in {pause:.0f} s (its log: {self.log})"
        if now >= self._start_again_at:
            self.start()
        return None

    def ask_to_stop(self) -> None:
        if self.is_alive() and self._process:
            self._process.terminate()

    def wait_stopped(self, seconds: float) -> None:
        """Wait for the end, then kill what is left of the process group."""
        if self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        """Kill the process with everything in its process group."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
