"""A child that must not outlive the process that started it."""

import os
import signal

from scheduler_project.sdk.process.processes import die_with_parent
from tests.sdk.stage import gone
from tests.support.waiting import wait_until


def child_of_a_child(parent_is_dead: bool) -> tuple[int, int]:
    """Fork a parent whose child wants to die with it; return both pids."""
    ready, done = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            pid = os.getpid()
            child = os.fork()
            if not child:
                try:
                    if parent_is_dead:
                        wait_until(lambda: os.getppid() != pid, 15, "the end of the parent")
                    # Should it live on after all, it must not do so for ever.
                    signal.alarm(60)
                    die_with_parent(pid)
                    os.write(done, b"%d" % os.getpid())
                    signal.pause()
                finally:
                    os._exit(1)
            if parent_is_dead:
                os.write(done, b"%d" % child)
                os._exit(0)
            signal.pause()
        finally:
            os._exit(1)
    os.close(done)
    child = int(os.read(ready, 20))
    os.close(ready)
    return parent, child


def test_the_kernel_kills_it_when_its_parent_is_killed() -> None:
    parent, child = child_of_a_child(parent_is_dead=False)
    assert not gone(child)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: gone(child), 15, "the end of the child")


def test_it_kills_itself_when_its_parent_died_before_it_could_ask_the_kernel() -> None:
    parent, child = child_of_a_child(parent_is_dead=True)
    os.waitpid(parent, 0)
    wait_until(lambda: gone(child), 15, "the end of the child")
