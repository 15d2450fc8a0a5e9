"""Test a supervised child: it is restarted when it dies, later each time, and ended with its descendants."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_project.standalone.process import LOG_KEPT_BYTES, SupervisedProcess
from tests.support.waiting import wait_until

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
)
WITH_CHILD = (
    "import subprocess, sys, signal\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
    "print(child.pid, flush=True); signal.pause()"
)


class Children:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[SupervisedProcess] = []

    def make(self, program: str) -> SupervisedProcess:
        command = [sys.executable, "-c", program]
        child = SupervisedProcess(
            "worker", command, cwd=self.folder, env=os.environ, log=self.folder / "worker.log"
        )
        self.made.append(child)
        return child


@pytest.fixture
def children(tmp_path: Path) -> Iterator[Children]:
    children = Children(tmp_path)
    yield children
    for child in children.made:
        child.kill()
        child.end(5)


def test_a_child_that_keeps_dying_is_started_again_later_each_time(children: Children) -> None:
    child = children.make("raise SystemExit(3)")
    child.start()
    news = [wait_until(child.keep_alive, what="a death") for _ in range(3)]
    assert [(sentence or "").split("; ")[1].split(" (")[0] for sentence in news] == [
        "starting it again in 1 s",
        "starting it again in 2 s",
        "starting it again in 4 s",
    ]
    assert all((sentence or "").startswith("worker ended with exit code 3; ") for sentence in news)


def test_a_child_that_ignores_sigterm_is_killed_when_its_time_is_up(children: Children) -> None:
    child = children.make(STUBBORN)
    child.start()
    wait_until(lambda: "up" in child.log.read_text(), what="the child")
    child.ask_to_stop()
    child.end(0.2)
    assert not child.is_alive()


def test_what_a_child_started_ends_with_it(children: Children) -> None:
    child = children.make(WITH_CHILD)
    child.start()
    grandchild = int(wait_until(lambda: child.log.read_text().strip(), what="the grandchild"))
    child.ask_to_stop()
    child.end(5)
    wait_until(lambda: not is_running(grandchild), what="the end of the grandchild")


def test_its_log_does_not_grow_for_ever(children: Children) -> None:
    child = children.make("print('new')")
    child.log.write_bytes(b"x" * (LOG_KEPT_BYTES + 1))
    child.start()
    wait_until(lambda: child.log.read_text() == "new\n", what="a log of its own")
    assert child.log.with_suffix(".log.1").stat().st_size > LOG_KEPT_BYTES


def test_it_gets_no_signal_of_the_terminal(children: Children) -> None:
    child = children.make("import signal; signal.pause()")
    child.start()
    assert child.process is not None
    assert os.getpgid(child.process.pid) != os.getpgrp()
    os.kill(child.process.pid, signal.SIGKILL)
    wait_until(lambda: not child.is_alive(), what="its death")
    assert "was killed by SIGKILL" in (child.keep_alive() or "")


def is_running(pid: int) -> bool:
    """Return the living processes, without zombies."""
    answer = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(answer.stdout.strip()) and not answer.stdout.startswith("Z")
