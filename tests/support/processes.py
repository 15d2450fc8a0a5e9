"""Real processes of ours, with their output in a file; none of them outlives the test."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from scheduler_project.sdk.process.processes import die_with_parent
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable


class RealProcess:
    """In a session of its own, so that everything it started can be ended with it."""

    def __init__(
        self,
        command: Sequence[str],
        output: Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path = CHECKOUT,
    ) -> None:
        self.command = list(command)
        self.output = output
        with output.open("ab") as file:
            self.popen = subprocess.Popen(
                self.command,
                cwd=cwd,
                env=environment(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid(), signal.SIGKILL),
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self.popen.poll() is None

    def wait_for_output(self, wanted: str, timeout: float = 30) -> str:
        """Return the output once it holds the text; fail at once if the process ends without it."""
        wait_until(
            lambda: wanted in self.text() or not self.is_alive(),
            timeout,
            f"{wanted!r} from {' '.join(self.command)}; it wrote:\n{self.text()[-3000:]}",
        )
        text = self.text()
        assert wanted in text, f"{' '.join(self.command)} ended ({self.popen.returncode}):\n{text[-3000:]}"
        return text

    def send(self, signal_number: int) -> None:
        os.kill(self.pid, signal_number)

    def wait(self, timeout: float = 30) -> int:
        """Its exit code."""
        wait_until(lambda: not self.is_alive(), timeout, f"the end of {' '.join(self.command)}")
        return int(self.popen.returncode)

    def terminate(self, timeout: float = 30) -> int:
        """As an operator would stop it; killed with its whole group when that takes too long."""
        if self.is_alive():
            self.popen.terminate()
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        return self.kill()

    def kill(self) -> int:
        """SIGKILL to it and to everything in its process group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        return self.popen.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A stopped process takes no signal but this one.
        self.kill()


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Ours with the changes; None takes a variable away."""
    changed = {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
    return {name: value for name, value in changed.items() if value is not None}


class Processes:
    """What the fixture `processes` gives: `start` as often as wanted, everything is ended with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[RealProcess] = []

    def start(
        self,
        *command: str,
        env: Mapping[str, str | None] | None = None,
        name: str = "",
        cwd: Path = CHECKOUT,
    ) -> RealProcess:
        output = self.folder / f"{len(self._started):02}-{name or Path(command[0]).name}.log"
        process = RealProcess(command, output, env, cwd)
        self._started.append(process)
        return process

    def python(
        self, *arguments: str, env: Mapping[str, str | None] | None = None, name: str = ""
    ) -> RealProcess:
        """`python -m …` of this environment: processes.python("celery", "-A", "scheduler_project", …)."""
        return self.start(PYTHON, "-m", *arguments, env=env, name=name or arguments[0])

    def __iter__(self) -> Iterator[RealProcess]:
        return iter(self._started)

    def stop_all(self) -> None:
        for process in self._started:
            process.kill()
