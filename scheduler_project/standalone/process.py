"""Supervise a child process: start it, restart it when it dies, stop it within a time limit."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from scheduler_project.sdk.process.processes import die_with_parent

MAX_PAUSE_SECONDS = 30.0
# A child that lived this long did not fail for the reason it failed for before.
SETTLED_SECONDS = 60.0
LOG_KEPT_BYTES = 10 * 1024 * 1024


def begin(
    command: Sequence[str], output: BinaryIO, ended_by: signal.Signals = signal.SIGTERM, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a process that the system ends by a signal when we die; the options are those of Popen."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Ctrl-C at the terminal reaches the supervisor alone, which stops in order.
        start_new_session=True,
        preexec_fn=partial(die_with_parent, os.getpid(), ended_by),
        **options,
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


@dataclass
class SupervisedProcess:
    name: str
    command: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    _started_at: float = 0.0
    _start_again_at: float | None = None
    _pause: float = 1.0

    def start(self) -> None:
        if self.log.exists() and self.log.stat().st_size > LOG_KEPT_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as output:
            self.process = begin(self.command, output, cwd=self.cwd, env=self.env)
        self._started_at = time.monotonic()
        self._start_again_at = None

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def keep_alive(self) -> str | None:
        """Restart the process when it is dead and its pause is over; return a sentence when it has just died."""
        if self.is_alive() or self.process is None:
            return None
        now = time.monotonic()
        if self._start_again_at is None:
            if now - self._started_at > SETTLED_SECONDS:
                self._pause = 1.0
            pause, self._pause = self._pause, min(self._pause * 2, MAX_PAUSE_SECONDS)
            self._start_again_at = now + pause
            self.kill()
            code = self.process.returncode
            ending = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            return f"{self.name} {ending}; starting it again in {pause:.0f} s (its log: {self.log})"
        if now >= self._start_again_at:
            self.start()
        return None

    def ask_to_stop(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def end(self, seconds: float) -> None:
        """Wait so long for a process that was asked to stop, then kill what is left of its process group."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.kill()
        self.process.wait()

    def kill(self) -> None:
        """Kill the process with everything in its process group."""
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
