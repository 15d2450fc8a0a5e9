"""A worker's threads start processes while its pool forks."""

import os
import signal
import sys
import threading

from scheduler_project.sdk.process.spawn import SpawnedProcess
from tests.support.waiting import wait_until

ENV = dict(os.environ)


def test_a_child_forked_meanwhile_delays_no_start() -> None:
    """With a pipe to the new process, as `subprocess` has one, some of these forks would keep its end."""
    forked: list[int] = []
    done = threading.Event()

    def fork_on_and_on() -> None:
        while not done.is_set() and len(forked) < 200:
            pid = os.fork()
            if not pid:
                signal.pause()
                os._exit(0)
            forked.append(pid)

    forking = threading.Thread(target=fork_on_and_on)
    forking.start()
    started: list[SpawnedProcess] = []
    starting = threading.Thread(
        target=lambda: started.extend(SpawnedProcess([sys.executable, "-c", ""], ENV) for _ in range(20)),
        daemon=True,
    )
    starting.start()
    try:
        starting.join(60)
        assert len(started) == 20
        assert all(process.wait(60) for process in started)
    finally:
        done.set()
        forking.join()
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_how_it_ended_is_known() -> None:
    process = SpawnedProcess([sys.executable, "-c", "raise SystemExit(7)"], ENV)
    assert process.wait(30)
    assert process.ended_with == 7


def test_it_can_be_killed() -> None:
    process = SpawnedProcess([sys.executable, "-c", "import time; time.sleep(600)"], ENV)
    assert process.is_alive()
    process.kill()
    assert process.wait(30)
    assert process.ended_with == -signal.SIGKILL


def test_it_has_a_session_of_its_own_and_reads_nothing() -> None:
    process = SpawnedProcess([sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.read()))"], ENV)
    session = os.getsid(process.pid)
    assert process.wait(30)
    assert (session, process.ended_with) == (process.pid, 0)


def test_that_another_thread_waited_for_it_is_an_end_too() -> None:
    process = SpawnedProcess([sys.executable, "-c", ""], ENV)
    os.waitpid(process.pid, 0)
    wait_until(lambda: not process.is_alive(), 30, "its end to be known")
